# SPDX-License-Identifier: Apache-2.0
"""wgmma: products of a warpgroup, with operands in shared memory."""

from __future__ import annotations

import re
from math import prod

from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.products import Steps
from ptx_emulator.emit.registry import emits, refuse
from ptx_emulator.emit.wide import bind_rows
from ptx_emulator.ptx.model import Imm, Instruction, Operand, Reg, Vector

SHAPE = re.compile(r"m64n(\d+)k(\d+)")
DEPTHS = {"f16": "16", "bf16": "16", "tf32": "8", **dict.fromkeys(("e4m3", "e5m2"), "32")}
DEPTHS |= dict.fromkeys(("s8", "u8"), "32")
ALIKE = ({"e4m3", "e5m2"}, {"s8", "u8"})  # types that a product may mix


@emits("wgmma")
def wgmma(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    kind = instruction.parts[1]
    if predicate is not None:
        raise refuse(instruction)
    if kind == "fence":
        return  # it moves nothing; the program looks for missing ones before it runs
    if kind == "commit_group":
        emitter.line("m.wgmma.commit(s)")
    elif kind == "wait_group":
        (pending,) = instruction.operands
        if not isinstance(pending, Imm):
            raise refuse(instruction)
        emitter.line(f"m.wgmma.wait(s, {pending.bits})")
    elif kind == "mma_async":
        _multiply(emitter, instruction)
    else:
        raise refuse(instruction)


def _multiply(emitter: Emitter, instruction: Instruction) -> None:
    shape = next(
        (
            SHAPE.fullmatch(part)
            for part in instruction.parts
            if part[:1] == "m" and part != "mma_async"
        ),
        None,
    )
    d_type, a_type, b_type = [part for part in instruction.parts if part != "satfinite"][-3:]
    alike = a_type == b_type or any({a_type, b_type} <= types for types in ALIKE)
    if shape is None or not alike or DEPTHS.get(a_type) != shape[2]:
        raise refuse(instruction)
    accumulators, a, b, scale_d, *flags = instruction.operands
    signs, transposed = _numbers(flags)[:2], _numbers(flags)[2:]
    if len(signs) != (0 if d_type == "s32" else 2) or not {*signs} <= {1, -1}:
        raise refuse(instruction)
    if not isinstance(accumulators, Vector):
        raise refuse(instruction)
    *trans_a, trans_b = transposed or [0]  # 8-bit products say nothing of it
    if isinstance(a, Vector):
        a_name = f"({', '.join(emitter.read(item, 'u32') for item in a.items)},)"
    else:
        a_name = emitter.array(a, "u64")
    add = _scale(emitter, scale_d)
    b_name, products = emitter.array(b, "u64"), emitter.products
    of, turned = f"s, {int(shape[1])}, ({a_type!r}, {b_type!r})", (any(trans_a), bool(trans_b))
    sign = prod(signs)
    if d_type != "f32":
        products.run_steps()
        product = f"{of}, {a_name}, {b_name}, {add}, {turned[0]}, {turned[1]}"
        _multiply_at_once(emitter, accumulators, d_type, product, sign)
        return
    registers = tuple(item.name for item in accumulators.items if isinstance(item, Reg))
    step = f"({a_name}, {b_name}, {emitter.pc})"
    if add == "True" and products.continue_steps(registers, (of, turned, sign), step):
        return
    products.run_steps()
    matrix = products.matrix(registers)
    if matrix is None:
        values = emitter.rows.stacked([emitter.array(item, "f32") for item in accumulators.items])
        matrix = emitter.temporary(f"m.wgmma.gather(s, {values})", "f32")
    products.start_steps(registers, Steps((of, turned, sign), add, matrix, [step]))


def _scale(emitter: Emitter, scale_d: Operand) -> str:
    """Whether a product adds to its accumulator, as a constant if it is one."""
    if isinstance(scale_d, Imm):
        return str(bool(scale_d.bits))
    known = emitter.layout.known_predicates
    if isinstance(scale_d, Reg) and scale_d.name in known:
        return str(known[scale_d.name])
    return emitter.read(scale_d, "b1")


def _multiply_at_once(
    emitter: Emitter, accumulators: Vector, d_type: str, product: str, sign: int
) -> None:
    """Sums of 16-bit floats or of integers, which stay in registers."""
    storage = "u32" if d_type == "f16" else "i32"
    values = emitter.rows.stacked([emitter.array(item, storage) for item in accumulators.items])
    call = f"m.wgmma.multiply_at_once({product}, {values}, {emitter.pc}, {sign})"
    bind_rows(emitter, accumulators.items, call, storage)


def _numbers(flags: list[Operand]) -> list[int]:
    return [flag.bits for flag in flags if isinstance(flag, Imm)]
