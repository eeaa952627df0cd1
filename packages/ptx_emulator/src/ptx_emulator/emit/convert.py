# SPDX-License-Identifier: Apache-2.0
"""cvt: integers, floats, and packed pairs of 16 and 8 bits."""

from __future__ import annotations

from ptx_emulator.emit.arithmetic import flushed
from ptx_emulator.emit.emitter import Emitter
from ptx_emulator.emit.registry import emits, expect_parts, refuse
from ptx_emulator.ptx.model import Instruction, Operand
from ptx_emulator.types import STORAGE_OF_PTX, numpy_name

EIGHT_BITS = {"e4m3x2", "e5m2x2"}
TF32: dict[tuple[str, ...], str] = {
    ("rna", "tf32", "f32"): "to_tf32",
    ("rn", "tf32", "f32"): "to_tf32_even",
}
TO_INTEGER = {"rzi": "trunc", "rni": "rint", "rmi": "floor", "rpi": "ceil"}


@emits("cvt")
def convert(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    if not EIGHT_BITS.isdisjoint(instruction.parts):
        _eight_bits(emitter, instruction, predicate)
        return
    if instruction.parts[1:] in TF32:
        value = emitter.array(instruction.operands[1], "f32")
        expression = f"narrow.{TF32[instruction.parts[1:]]}({value})"
        emitter.write(instruction.operands[0], expression, "u32", predicate)
        return
    expect_parts(instruction, {"rn", "rz", "rm", "rp", "relu", "ftz", "sat", *TO_INTEGER})
    types = [part for part in instruction.parts[1:] if part in STORAGE_OF_PTX]
    target, source = types[0], types[-1]
    saturated = "sat" in instruction.parts
    if saturated and types != ["f32", "f32"]:
        raise refuse(instruction)
    toward_zero = "rz" in instruction.parts
    directed = next((part for part in instruction.parts if part in ("rz", "rm", "rp")), None)
    if "relu" in instruction.parts and (target not in ("f16x2", "bf16x2") or saturated):
        raise refuse(instruction)
    if target in ("f16x2", "bf16x2"):
        if directed in ("rm", "rp"):
            raise refuse(instruction)
        high, low = (_float(emitter, instruction, o) for o in instruction.operands[1:])
        if "relu" in instruction.parts:
            high, low = (f"numerics.not_negative({value})" for value in (high, low))
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
    elif directed is not None and want in ("f32", "f64"):
        expression = f"rounding.converted({value}, {directed!r}, {numpy_name(want)})"
    elif directed is not None:
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


def _eight_bits(emitter: Emitter, instruction: Instruction, predicate: str | None) -> None:
    """Pairs of 8-bit floats from floats or from a pair of 16 bits, and back to such a pair."""
    parts = [part for part in instruction.parts[1:] if part != "relu"]
    relu = "relu" in instruction.parts
    narrow = next(part for part in parts if part in EIGHT_BITS)[:-2]
    if parts == ["rn", "f16x2", f"{narrow}x2"] and not relu:
        pair = emitter.array(instruction.operands[1], "u16")
        expression = f"narrow.unpack_8({pair}, {narrow!r})"
        emitter.write(instruction.operands[0], expression, "u32", predicate)
        return
    if parts == ["rn", "satfinite", f"{narrow}x2", "f32"]:
        high, low = (emitter.array(o, "f32") for o in instruction.operands[1:])
    elif parts == ["rn", "satfinite", f"{narrow}x2", "f16x2"]:
        word = emitter.array(instruction.operands[1], "u32")
        pair = emitter.temporary(f"numerics.elements({word}, 'f16')", "f32")
        high, low = f"{pair}[..., 1]", f"{pair}[..., 0]"
    else:
        raise refuse(instruction)
    if relu:
        high, low = (f"numerics.not_negative({value})" for value in (high, low))
    expression = f"narrow.pack_8({low}, {high}, {narrow!r})"
    emitter.write(instruction.operands[0], expression, "u16", predicate)


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
