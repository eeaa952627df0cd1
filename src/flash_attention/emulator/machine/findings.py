# SPDX-License-Identifier: Apache-2.0
"""What a run found wrong, once for every pair of instructions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flash_attention.emulator.machine.access import Thread
    from flash_attention.emulator.machine.lanes import Selection
    from flash_attention.emulator.program.program import Program


@dataclass(frozen=True)
class Finding:
    """A mistake of the kernel: the first lane that made it, where, and against which access.

    `source` and `other_source` are `file:line` of the CUDA text and of its caller. `address` is the
    address the lane computed. `count` says how many lanes made the same mistake at the same place.
    """

    kind: str
    detail: str
    kernel: str
    cta: int | None
    warp: int | None
    lane: int | None
    address: int | None
    ptx_line: int | None
    source: str | None
    other_ptx_line: int | None
    other_source: str | None
    count: int

    def __str__(self) -> str:
        who = "" if self.cta is None else f" by CTA {self.cta} warp {self.warp} lane {self.lane}"
        address = "" if self.address is None else f", address {self.address:#x}"
        text = f"[{self.kind}] {self.kernel} {_place(self.ptx_line, self.source)}{who}{address}"
        text += f": {self.detail}"
        if self.other_ptx_line is not None:
            text += f"; the other access: {_place(self.other_ptx_line, self.other_source)}"
        return f"{text} (x{self.count})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _place(ptx_line: int | None, source: str | None) -> str:
    line = "at an unknown line" if ptx_line is None else f"PTX line {ptx_line}"
    return line if source is None else f"{line} ({source})"


class Findings:
    """All findings of a run, in the order they were first made."""

    def __init__(self, program: Program) -> None:
        self._kernel = program.kernel
        self._found: dict[tuple[str, int | None, int | None], Finding] = {}

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
        """Note a mistake of the lanes of `sel` for which `bad` holds.

        Mistakes seen in the text of the kernel alone have no selection.
        """
        count = 1 if bad is None else int(np.count_nonzero(bad))
        if count == 0:
            return
        key = (kind, pc, other_pc)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + count)
            return
        first = 0 if bad is None else int(bad.argmax())
        ptx_line, source = self._locate(pc)
        other_ptx_line, other_source = self._locate(other_pc)
        self._found[key] = Finding(
            kind=kind,
            detail=detail,
            kernel=self._kernel.name,
            cta=None if sel is None else int(sel.cta[first]),
            warp=None if sel is None else int(sel.warp[first]),
            lane=None if sel is None else int(sel.lane[first]),
            address=None if address is None else int(address[first]),
            ptx_line=ptx_line,
            source=source,
            other_ptx_line=other_ptx_line,
            other_source=other_source,
            count=count,
        )

    def report_thread(
        self,
        kind: str,
        detail: str,
        thread: Thread,
        address: NDArray[Any] | None = None,
        other_pc: int | None = None,
    ) -> None:
        """Note a mistake of one thread."""
        self.report(kind, detail, thread.pc, thread.sel, thread.mask, address, other_pc)

    def _locate(self, pc: int | None) -> tuple[int | None, str | None]:
        if pc is None or not 0 <= pc < len(self._kernel.instructions):
            return None, None
        instruction = self._kernel.instructions[pc]
        return instruction.ptx_line, instruction.source
