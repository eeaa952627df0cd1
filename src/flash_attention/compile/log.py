# SPDX-License-Identifier: Apache-2.0
"""The compile log as data: what ptxas says about registers, stack, spills and wgmma."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flash_attention.errors import CompileError

_COMPILING = re.compile(r"Compiling entry function '([^']+)'")
_REGISTERS = re.compile(r"\bUsed (\d+) registers")
_CUMULATIVE_STACK = re.compile(r"\b(\d+) bytes cumulative stack size")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_NOTE = re.compile(r"\(C\d{4,}\).*")


@dataclass(frozen=True)
class Resources:
    """What one thread of a kernel takes, and what ptxas remarked on the way."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    notes: tuple[str, ...]  # such as "(C7511) Potential Performance Loss: wgmma ... serialized"

    @property
    def spill_bytes(self) -> int:
        """What is stored to and loaded from local memory for want of registers."""
        return self.spill_store_bytes + self.spill_load_bytes


def parse_log(log: str, entry: str) -> Resources:
    """The resources of kernel `entry`, from a log made with `--ptxas-options=-v`."""
    about_entry = _lines_about(log, entry)
    registers = _REGISTERS.search(about_entry)
    frames = [tuple(map(int, frame)) for frame in _FRAME.findall(about_entry)]
    if registers is None or not frames:
        raise CompileError(
            f"the compile log states no registers of {entry!r}; "
            'the translation unit must define it as extern "C" __global__',
            log=log,
        )
    cumulative = _CUMULATIVE_STACK.search(about_entry)
    return Resources(
        registers=int(registers.group(1)),
        stack_bytes=int(cumulative.group(1)) if cumulative else frames[0][0],
        spill_store_bytes=sum(frame[1] for frame in frames),
        spill_load_bytes=sum(frame[2] for frame in frames),
        notes=tuple(note.strip() for note in _NOTE.findall(log)),
    )


def _lines_about(log: str, entry: str) -> str:
    """From the line that opens `entry` to the next entry: it and the functions it calls."""
    lines = []
    inside = False
    for line in log.splitlines():
        opened = _COMPILING.search(line)
        if opened:
            inside = opened.group(1) == entry
        if inside:
            lines.append(line)
    return "\n".join(lines)
