# SPDX-License-Identifier: Apache-2.0
"""The texts of a kernel with its hot loop marked: machine code, PTX, CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flash_attention.compile import CompiledKernel
from flash_attention.compile.includes import include_closure
from flash_attention_workbench.inspect.loops import HotLoop, Line, hot_loop
from flash_attention_workbench.inspect.machine_loop import MachineLoop

HOT, SKIPPABLE, COLD = "|", ":", " "
LEGEND = f"{HOT} the loop over key blocks   {SKIPPABLE} lines in it that a turn can do without"

_LABEL = re.compile(r"^(\$L\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+)\s*;")
_JUMP = re.compile(r"^\s*(?:bra|ret|exit)\b")
_PRODUCTS = ("wgmma.mma_async", "mma.sync")  # the second counts where there is none of the first
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")


def marked_sass(machine: MachineLoop) -> Iterator[str]:
    """An instruction a line."""
    for line, one in enumerate(machine.instructions):
        mark = _mark(machine.loop, line)
        predicate = f"@{one.predicate}" if one.predicate else ""
        text = f"{mark} {one.address:05x} {predicate:>5} {one.opcode} {one.operands}"
        yield text.rstrip() + (f"  -> {one.target:05x}" if one.target is not None else "")


def marked_ptx(ptx: str) -> Iterator[str]:
    """A line a line."""
    loop = ptx_loop(ptx)
    for number, line in enumerate(ptx.splitlines()):
        yield f"{_mark(loop, number)} {line}".rstrip()


def _mark(loop: HotLoop | None, line: int) -> str:
    if loop is None or line not in loop.lines:
        return COLD
    return SKIPPABLE if line in loop.skippable else HOT


def ptx_loop(ptx: str) -> HotLoop | None:
    """The lines of the loop over key blocks."""
    lines = ptx.splitlines()
    labels = {m[1]: place for place, line in enumerate(lines) if (m := _LABEL.match(line))}
    product = next((name for name in _PRODUCTS if name in ptx), "")
    flow = []
    for line in lines:
        branch = _BRANCH.search(line)
        target = None if branch is None else labels.get(branch[1])
        flow.append(Line(target, _JUMP.match(line) is None, int(bool(product) and product in line)))
    return hot_loop(flow)


@dataclass(frozen=True)
class SourceFile:
    """One file of a kernel, and which of its lines the hot loop comes from."""

    name: str
    text: str
    hot: frozenset[int]  # line numbers from 1

    def marked(self) -> Iterator[str]:
        for number, line in enumerate(self.text.splitlines(), 1):
            yield f"{HOT if number in self.hot else COLD} {number:4} {line}".rstrip()


def source_files(compiled: CompiledKernel) -> list[SourceFile]:
    """The headers in the order they are needed, then the translation unit."""
    hot: dict[str, set[int]] = {}
    names = {number: _included(path) for number, path in _FILE.findall(compiled.ptx)}
    for file, line in _hot_places(compiled.ptx):
        hot.setdefault(names.get(file, ""), set()).add(line)
    texts = {**include_closure(compiled.source), UNIT: compiled.source}
    return [SourceFile(n, text, frozenset(hot.get(n, ()))) for n, text in texts.items()]


UNIT = "kernel.cu"


def marked_source(compiled: CompiledKernel) -> Iterator[str]:
    """Every file under its name."""
    for file in source_files(compiled):
        yield f"===== {file.name} ====="
        yield from file.marked()


def _hot_places(ptx: str) -> Iterable[tuple[str, int]]:
    loop = ptx_loop(ptx)
    lines = ptx.splitlines()
    for place in sorted(loop.lines) if loop else ():
        if found := _PLACE.match(lines[place]):
            yield found[1], int(found[2])


def _included(path: str) -> str:
    """A file as it is included: <fa/core.cuh>; the unit itself by its name."""
    _, inside, header = path.rpartition("/include/")
    return header if inside else Path(path).name
