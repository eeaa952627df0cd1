# SPDX-License-Identifier: Apache-2.0
"""Functions of a PTX module, whose bodies are put where they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ptx_emulator.errors import PtxError, quoted
from ptx_emulator.ptx.declarations import NAME, read_params
from ptx_emulator.ptx.model import Imm, Instruction, Label, Operand, Param, Reg

MAX_DEPTH = 64  # calls within calls
MAX_CALLS = 4096  # of a kernel, with those of the functions that it calls
RETURN, AFTER = " return", " after"  # labels of a call, which no text can have

_HEADER = re.compile(
    rf"\.func\s+(?:\.\w+(?:\([^)]*\))?\s+)*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>{NAME})\s*"
    r"(?:\((?P<params>[^)]*)\))?"
)


@dataclass(frozen=True)
class Function:
    """A function: its results and parameters, and where its body is; a declaration has none."""

    name: str
    results: tuple[Param, ...]
    params: tuple[Param, ...]
    line: int
    start: int = 0
    end: int = 0


def read_function(header: str, line: int) -> Function:
    """What the header of a function says."""
    match = _HEADER.search(header)
    if match is None:
        raise PtxError(f"cannot read the function {quoted(header)}", line)
    results, params = (
        read_params((match[group] or "").replace(".reg", ".param"), line)
        for group in ("results", "params")
    )
    return Function(match["name"], results, params, line)


def is_scalar(param: Param) -> bool:
    """Whether a register holds it; a structure is bytes in memory."""
    return param.type != "b8" or param.size == 1


def checked_call(
    instruction: Instruction, function: Function, calling: Sequence[str], calls: int
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The results and the arguments of a call that can be put in place; PtxError otherwise."""
    results, _, arguments = (getattr(o, "items", ()) for o in instruction.operands)
    reason = None
    if function.name in calling:
        reason = f"{function.name} calls itself, and recursion is not emulated"
    elif len(calling) == MAX_DEPTH or calls > MAX_CALLS:
        reason = f"functions call each other more than {MAX_DEPTH} deep or {MAX_CALLS} times"
    elif (len(results), len(arguments)) != (len(function.results), len(function.params)):
        reason = f"{function.name} takes {len(function.params)} arguments"
    if reason is not None:
        place = instruction.ptx_line, instruction.source
        raise PtxError(f"{reason}: {instruction.text}", *place)
    return results, arguments


def moves(
    instruction: Instruction, pairs: Sequence[tuple[Operand, Operand, Param]]
) -> list[Instruction]:
    """Copies to the first of each pair from the second."""
    found = []
    for target, source, param in pairs:
        if not isinstance(target, Reg) or not isinstance(source, Reg | Imm):
            continue
        parts = ("mov", f"b{8 * param.size}")
        found.append(
            replace(
                instruction,
                opcode=".".join(parts),
                parts=parts,
                operands=(target, source),
                predicate=None,
                negated=False,
            )
        )
    return found


def jump(instruction: Instruction, label: str, *, opposite: bool = False) -> Instruction:
    """A jump under the predicate of an instruction, or under the opposite."""
    return replace(
        instruction,
        opcode="bra",
        parts=("bra",),
        operands=(Label(label),),
        negated=instruction.negated != opposite,
    )
