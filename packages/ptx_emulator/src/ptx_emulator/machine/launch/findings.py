# SPDX-License-Identifier: Apache-2.0
"""The errors that a run found, one for every pair of instructions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.access import Thread
from ptx_emulator.machine.clusters import Clusters
from ptx_emulator.machine.lanes import Selection
from ptx_emulator.program.program import Program


@dataclass(frozen=True)
class Finding:
    """An error of the kernel, with the first lane that made it and the other access involved."""

    kind: str  # the kind of error, such as "race"
    detail: str  # what happened
    kernel: str  # the kernel's name
    cta: int | None  # the first lane that made the error: its CTA,
    warp: int | None  # its warp in the CTA,
    lane: int | None  # and its lane in the warp
    address: int | None  # the address that this lane accessed
    ptx_line: int | None  # the line of the PTX
    source: str | None  # file:line of the CUDA source and of all its callers
    other_ptx_line: int | None  # the line of the other access, if there is one
    other_source: str | None  # its file:line
    count: int  # how many lanes made the same error at the same instruction
    rank: int | None = None  # of the first lane's CTA in its cluster, if it has others

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" (cluster rank {self.rank})"
        who = f" by CTA {self.cta}{rank} warp {self.warp} lane {self.lane}"
        who = "" if self.cta is None else who
        address = "" if self.address is None else f", address {self.address:#x}"
        text = f"[{self.kind}] {self.kernel} {_place(self.ptx_line, self.source)}{who}{address}"
        text += f": {self.detail}"
        if self.other_ptx_line is not None:
            text += f"; the other access: {_place(self.other_ptx_line, self.other_source)}"
        return f"{text} (x{self.count})"

    @property
    def user_source(self) -> str | None:
        """file:line in the kernel itself, wherever the function that was inlined there is."""
        return None if self.source is None else self.source.split(", called from ")[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def _place(ptx_line: int | None, source: str | None) -> str:
    line = "at an unknown line" if ptx_line is None else f"PTX line {ptx_line}"
    return line if source is None else f"{line} ({source})"


class Findings:
    """All findings of a run, in the order of their first occurrence."""

    def __init__(self, program: Program, clusters: Clusters) -> None:
        self._kernel = program.kernel
        self._clusters = clusters
        self._found: dict[tuple[str, int | None, int | None], Finding] = {}
        self.reports = 0  # how often an error was recorded

    @property
    def items(self) -> list[Finding]:
        return list(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def report(
        self,
        kind: str,
        detail: str,
        pc: int | None,
        sel: Selection | None,
        bad: NDArray[np.bool_] | None,
        address: NDArray[Any] | None = None,
        other_pc: int | None = None,
    ) -> None:
        """Record an error of the lanes of `sel` for which `bad` is True.

        Errors that follow from the kernel's text alone have no selection.
        """
        count = 1 if bad is None else int(np.count_nonzero(bad))
        if count == 0:
            return
        self.reports += 1
        key = (kind, pc, other_pc)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + count)
            return
        first = 0 if bad is None else int(bad.argmax())
        warp = 0 if sel is None else int(sel.warp[first])
        ptx_line, source = self._locate(pc)
        other_ptx_line, other_source = self._locate(other_pc)
        self._found[key] = Finding(
            kind=kind,
            detail=detail,
            kernel=self._kernel.name,
            cta=None if sel is None else self._clusters.cta(int(sel.cta[first]), warp),
            warp=None if sel is None else self._clusters.warp(warp),
            lane=None if sel is None else int(sel.lane[first]),
            address=None if address is None else int(address[first]),
            ptx_line=ptx_line,
            source=source,
            other_ptx_line=other_ptx_line,
            other_source=other_source,
            count=count,
            rank=None if sel is None or self._clusters.size == 1 else self._clusters.rank(warp),
        )

    def report_thread(
        self,
        kind: str,
        detail: str,
        thread: Thread,
        address: NDArray[Any] | None = None,
        other_pc: int | None = None,
    ) -> None:
        """Record an error of one thread."""
        self.report(kind, detail, thread.pc, thread.sel, thread.mask, address, other_pc)

    def _locate(self, pc: int | None) -> tuple[int | None, str | None]:
        if pc is None or not 0 <= pc < len(self._kernel.instructions):
            return None, None
        instruction = self._kernel.instructions[pc]
        return instruction.ptx_line, instruction.source
