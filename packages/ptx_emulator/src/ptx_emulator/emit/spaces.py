# SPDX-License-Identifier: Apache-2.0
"""Which memory an instruction means."""

from __future__ import annotations

from ptx_emulator.ptx.model import Instruction, Operand, Vector

# The machine's component for a space, and the width of the addresses there.
COMPONENTS = {
    "shared": ("m.shared", "u32"),
    "global": ("m.global_access", "u64"),
    "const": ("m.constant_access", "u64"),
    "local": ("m.local", "u64"),
    "param": ("m.parameters", "u64"),
    "generic": ("m.generic", "u64"),
}


def space_of(instruction: Instruction) -> str:
    """The memory that an instruction names; "generic" where the address tells."""
    for part in instruction.parts:
        space = part.split("::")[0]
        if space in COMPONENTS:
            return space
    return "generic"


def items_of(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)
