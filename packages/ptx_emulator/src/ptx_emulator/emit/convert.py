# SPDX-License-Identifier: Apache-2.0
"""cvt: integers, floats, and packed pairs of 16 and 8 bits."""

from __future__ import annotations

from ptx_emulator.emit.arithmetic import flushed
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse
from ptx_emulator.ptx.model import Instruction, Operand
from ptx_emulator.types import STORAGE_OF_PTX, numpy_name

TO_INTEGER = {"rzi": "trunc", "rni": "rint", "rmi": "floor", "rpi": "ceil"}


@emits("cvt")
def convert(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if "e4m3x2" in instruction.parts:
        (_unpack_e4m3 if "f16x2" in instruction.parts else _pack_e4m3)(
            emitter, instruction, predicate
        )
        return
    expect_parts(instruction, {"rn", "rz", "ftz", "sat", *TO_INTEGER})
    types = [part for part in instruction.parts[1:] if part in STORAGE_OF_PTX]
    target, source = types[0], types[-1]
    saturated = "sat" in instruction.parts
    if saturated and types != ["f32", "f32"]:
        raise refuse(instruction)
    toward_zero = "rz" in instruction.parts
    if target in ("f16x2", "bf16x2"):
        high, low = (_float(emitter, instruction, o) for o in instruction.operands[1:])
        expression = f"numerics.pack_{target[:-2]}({low}, {high}, toward_zero={toward_zero})"
        emitter.write(instruction.operands[0], expression, "u32", predicate)
        return
    if "bf16" in (target, source):
        _bfloat16(emitter, instruction, target, toward_zero, predicate)
        return
    if (target, source) == ("f16", "f32"):
        value = _float(emitter, instruction, instruction.operands[1])
        expression = f"numerics.to_f16({value}, toward_zero={toward_zero})"
        emitter.write(instruction.operands[0], expression, "u16", predicate)
        return
    have, want = STORAGE_OF_PTX[source], STORAGE_OF_PTX[target]
    value = emitter.array(instruction.operands[1], have)
    if have == "f32":
        value = flushed(instruction, value)
    rounding = next((TO_INTEGER[p] for p in instruction.parts if p in TO_INTEGER), None)
    if have[0] == "f" and want[0] != "f":
        expression = f"numerics.to_integer(np.{rounding}({value}), {numpy_name(want)})"
    elif toward_zero:
        raise refuse(instruction)
    elif rounding is not None:
        expression = f"np.{rounding}({value}).astype({numpy_name(want)})"
    else:
        expression = f"{value}.astype({numpy_name(want)})"
    if want == "f32":
        expression = flushed(instruction, expression)
    if saturated:
        expression = f"numerics.saturate({expression})"
    emitter.write(instruction.operands[0], expression, want, predicate)


def _float(emitter: Emitter, instruction: Instruction, source: Operand) -> str:
    """A single-precision source; .ftz makes its subnormals zero."""
    return flushed(instruction, emitter.array(source, "f32"))


def _pack_e4m3(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if instruction.parts[1:] != ("rn", "satfinite", "e4m3x2", "f32"):
        raise refuse(instruction)
    high, low = (emitter.array(o, "f32") for o in instruction.operands[1:])
    expression = f"numerics.pack_e4m3({low}, {high})"
    emitter.write(instruction.operands[0], expression, "u16", predicate)


def _unpack_e4m3(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if instruction.parts[1:] != ("rn", "f16x2", "e4m3x2"):
        raise refuse(instruction)
    bytes_ = emitter.array(instruction.operands[1], "u16")
    expression = f"numerics.unpack_e4m3({bytes_})"
    emitter.write(instruction.operands[0], expression, "u32", predicate)


def _bfloat16(
    emitter: Emitter,
    instruction: Instruction,
    target: str,
    toward_zero: bool,
    predicate: str | None,
) -> None:
    source = instruction.operands[1]
    if target == "f32":
        expression = f"numerics.bf16_to_f32({emitter.array(source, 'u16')})"
        emitter.write(instruction.operands[0], expression, "f32", predicate)
    else:
        value = _float(emitter, instruction, source)
        expression = f"numerics.to_bf16({value}, toward_zero={toward_zero})"
        emitter.write(instruction.operands[0], expression, "u16", predicate)
