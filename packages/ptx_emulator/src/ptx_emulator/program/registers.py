# SPDX-License-Identifier: Apache-2.0
"""How many registers a thread has when a kernel starts, as setmaxnreg needs to know."""

from __future__ import annotations

from ptx_emulator.ptx.model import Imm, Kernel


def registers_at_launch(kernel: Kernel) -> int | None:
    """The registers of a thread at launch; None where setmaxnreg does nothing.

    ptxas gives a kernel with setmaxnreg the highest count that one of them names, or what the
    directives allow if that is less. Without such directives it ignores setmaxnreg.
    """
    counts = [
        operand.bits
        for instruction in kernel.instructions
        if instruction.parts[0] == "setmaxnreg"
        for operand in instruction.operands
        if isinstance(operand, Imm)
    ]
    if not counts or kernel.register_limit is None:
        return None
    return min(kernel.register_limit, max(counts))
