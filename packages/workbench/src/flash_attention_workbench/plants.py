# SPDX-License-Identifier: Apache-2.0
"""Known mistakes that are planted in a copy of the headers, to show what the emulator finds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from flash_attention.compile import INCLUDE_DIR, CompiledKernel, compile_to_ptx
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator.report.mends import DEADLOCK


@dataclass(frozen=True)
class Edit:
    """Replaces occurrence number `nth` of `old` behind `after` in `header` by `new`."""

    header: str
    old: str
    new: str = ""
    nth: int = 0
    after: str = ""  # such as "struct Whole", a variant among others of its slot

    def apply(self, text: str) -> str:
        before, after, rest = text.partition(self.after) if self.after else ("", "", text)
        pieces = rest.split(self.old)
        if len(pieces) < self.nth + 2:
            behind = f" behind {self.after!r}" if self.after else ""
            raise ValueError(f"{self.header} has no occurrence {self.nth} of {self.old!r}{behind}")
        head, tail = self.old.join(pieces[: self.nth + 1]), self.old.join(pieces[self.nth + 1 :])
        return before + after + head + self.new + tail


@dataclass(frozen=True)
class Plant:
    """A mistake with a name, the rung to plant it in, and what catches it.

    A `silent` mistake leaves the output correct, so no test of results would notice it.
    """

    name: str
    idea: str
    rung: int
    caught_by: str
    edits: tuple[Edit, ...]
    silent: bool = False
    seq: int = 256  # rows of q, k and v; the stages of a ring must be used twice


_EAGER, _OVERLAPPED = "sm80/schedule/eager.cuh", "sm90/schedule/overlapped.cuh"
_WAIT_OUTPUT = "c.template wait_products<0>();  // O is complete, V and P were read"
_ANNOUNCED = "arrive_expect(full, KVTile::kBytes"

PLANTS = (
    Plant(
        "missing-wait",
        "K is read while cp.async still copies it",
        2,
        "race",
        (Edit("sm80/schedule/lazy.cuh", "b.template wait<0>();", nth=1),),
    ),
    Plant(
        "missing-barrier",
        "a warp reads K's tile without a barrier behind the other warps' copies",
        8,
        "race",
        (Edit(_EAGER, "__syncthreads();", nth=1),),
        silent=True,
    ),
    Plant(
        "one-row-too-far",
        "every row is loaded from the address of the next one",
        4,
        "global-out-of-bounds",
        (Edit("sm80/load.cuh", "tensor.address(first + row)", "tensor.address(first + row + 1)"),),
    ),
    Plant(
        "missing-load",
        "Q is never loaded",
        3,
        "uninitialised-shared",
        (Edit(_EAGER, "b.load_q();"),),
    ),
    Plant(
        "missing-rescale",
        "O keeps its scale when the maximum of a row grows",
        7,
        NUMBERS,
        (Edit("attn/softmax.cuh", "rescale_row(o, i, h, shrink);"),),
    ),
    Plant(
        "early-release",
        "V's stage is given back to the producer before wgmma has read it",
        29,
        "race",
        (
            Edit(
                _OVERLAPPED,
                f"{_WAIT_OUTPUT}\n    c.release_v();",
                f"c.release_v();\n    {_WAIT_OUTPUT}",
            ),
        ),
        silent=True,
        seq=384,
    ),
    Plant(
        "unawaited-wgmma",
        "the scores are read while wgmma still writes them",
        29,
        "wgmma-in-flight",
        (Edit(_OVERLAPPED, "c.template wait_products<1>();  // S is complete"),),
        silent=True,
    ),
    Plant(
        "missing-proxy-fence",
        "TMA stores O from shared memory without a proxy fence behind the writes",
        21,
        "missing-proxy-fence",
        (Edit("sm90/warp_output.cuh", "ptx::fence_proxy_async();"),),
        silent=True,
    ),
    Plant(
        "too-many-bytes",
        "an mbarrier expects 64 bytes more than TMA brings",
        21,
        DEADLOCK,
        (Edit("sm90/producer.cuh", _ANNOUNCED, f"{_ANNOUNCED} + 64"),),
    ),
)


def find_plant(name: str) -> Plant:
    """Return the plant with this name."""
    for plant in PLANTS:
        if plant.name == name:
            return plant
    names = ", ".join(plant.name for plant in PLANTS)
    raise UnsupportedError(f"there is no plant {name!r}; choose from {names}")


def edited_headers(edits: Iterable[Edit], folder: Path) -> Path:
    """Make an include directory in `folder`: a copy of the package's headers with edits."""
    include = folder / "include"
    shutil.copytree(INCLUDE_DIR, include)
    for edit in edits:
        header = include / "fa" / edit.header
        header.write_text(edit.apply(header.read_text()))
    return include


def compiler(include: Path) -> Callable[[Unit], CompiledKernel]:
    """Return a function that compiles units with other headers than the package's."""

    def compile_edited(unit: Unit) -> CompiledKernel:
        return compile_to_ptx(unit.source, arch=unit.target, name="planted", include_dir=include)

    return compile_edited


def shortened(text: str) -> str:
    """Shorten the paths in a finding: of headers to what #include would name, of files here."""
    return re.sub(r"[^\s(]*/include/(?=fa/)", "", text).replace(f"{Path.cwd()}/", "")
