# SPDX-License-Identifier: Apache-2.0
"""Which lanes have written the registers that a kernel may read too early."""

from __future__ import annotations

import numpy as np

from ptx_emulator.machine.lanes import Bools, Selection
from ptx_emulator.machine.launch.launch import Launch


class WrittenRegisters:
    """One mark per lane for each register in doubt."""

    def __init__(self, launch: Launch) -> None:
        self._findings = launch.findings
        self._doubts = launch.program.doubts if launch.checks else {}
        registers = {
            register
            for doubts in self._doubts.values()
            for register in (*doubts.registers, *doubts.writes)
        }
        self._written: dict[str, Bools] = {
            register: np.zeros(launch.num_lanes, bool) for register in registers
        }

    @property
    def in_doubt(self) -> bool:
        """Whether there are such registers."""
        return bool(self._doubts)

    def run(self, block: int, sel: Selection) -> None:
        """Lanes run a block: look at what it reads, and mark what it writes."""
        doubts = self._doubts.get(block)
        if doubts is None:
            return
        for pc, register in doubts.reads:
            unwritten = ~self._written[register][sel.index]
            detail = f"read of {register}, which the lane has not written"
            self._findings.report("uninitialised-register", detail, pc, sel, unwritten)
        for pc, register in doubts.shuffles:
            givers = sel.warp_id[self._written[register][sel.index]]
            detail = f"shuffle of {register}, which no lane of the warp has written"
            nobody = ~np.isin(sel.warp_id, givers)
            self._findings.report("uninitialised-register", detail, pc, sel, nobody)
        marks = [
            (register, True if source is None else self._written[source][sel.index].copy())
            for register, source in doubts.writes.items()
        ]
        for register, written in marks:
            self._written[register][sel.index] = written
