# SPDX-License-Identifier: Apache-2.0
"""Kernels in .cu files with comments that say how they are launched and what has to come of it.

    // run: <<<grid, block, dynamic shared memory, cluster>>>(name=array or number, ...)
    // gives: what holds of the arrays afterwards, in Python
    // finds: the kinds of findings, where the kernel has a mistake

A line with a mistake ends in `// <- kind`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptx_emulator import Empty, Tensor, UserKernel, UserRun
from ptx_emulator.user_kernel.compiling import Unit, compile_cuda, toolkit_headers

FOLDER = Path(__file__).parent  # of headers
_KERNEL = re.compile(
    r"^// run: <<<(?P<launch>.*)>>>\((?P<arguments>.*)\)\n"
    r"(?://\ gives:\ (?P<gives>.*)\n)?"
    r"extern\ \"C\"\ __global__\ void\ (?:__\w+\(.*?\)\ )*(?P<name>\w+)\(",
    re.MULTILINE,
)
_ARCH = re.compile(r"^// arch: (\w+)$", re.MULTILINE)
_NEEDS_TOOLKIT = "// needs: a CUDA toolkit\n"
_MISTAKE = re.compile(r"// <- ([\w-]+)$")


@dataclass(frozen=True)
class Annotated:
    """One kernel of a file, and what its comments say."""

    path: Path
    name: str
    launch: str
    arguments: str
    gives: str
    mistakes: tuple[tuple[int, str], ...]  # lines and kinds

    def values(self) -> dict[str, Any]:
        """The arguments by their names."""
        given = eval(f"dict({self.arguments})", dict(_VALUES))
        return {name: given[v.name] if isinstance(v, _Again) else v for name, v in given.items()}

    def sizes(self) -> tuple[Any, Any, int, Any]:
        """Grid, block, dynamic shared memory and cluster."""
        sizes: tuple[Any, ...] = eval(f"({self.launch},)", {})
        grid, block, dynamic_smem, cluster = sizes + (0, None)[len(sizes) - 2 :]
        return grid, block, dynamic_smem, cluster

    def run(self, schedule: str = "lockstep") -> tuple[UserRun, dict[str, Any]]:
        """Run it; the arrays afterwards have the names of the arguments."""
        given = self.values()
        grid, block, dynamic_smem, cluster = self.sizes()
        kernel = UserKernel.of_ptx(ptx_of(self.path), self.name)
        result = kernel.run(
            *given.values(),
            grid=grid,
            block=block,
            dynamic_smem=dynamic_smem,
            cluster=cluster,
            names=list(given),
            schedule=schedule,
            seed=1,
        )
        arrays = iter(result.arrays)
        kinds = (np.ndarray, Empty, Tensor)
        after = {name: next(arrays) if isinstance(v, kinds) else v for name, v in given.items()}
        return result, after


@dataclass(frozen=True)
class _Again:
    """The array of another argument, passed once more."""

    name: str


_VALUES: dict[str, Any] = {
    "Empty": Empty,
    "Tensor": Tensor,
    "np": np,
    "ints": lambda n: np.zeros(n, np.int32),
    "longs": lambda n: np.zeros(n, np.uint64),
    "full": lambda n, value: np.full(n, value, np.int32),
    "iramp": lambda n: np.arange(n, dtype=np.int32),
    "floats": lambda n: np.zeros(n, np.float32),
    "ramp": lambda n: np.arange(n, dtype=np.float32),
    "halves": lambda *shape: (np.arange(np.prod(shape)) % 7 - 3).astype(np.float16).reshape(shape),
    "again": _Again,
}


def kernels_in(folder: Path) -> Iterator[Annotated]:
    """The kernels of all files of a folder."""
    for path in sorted(folder.glob("*.cu")):
        text = path.read_text()
        found = list(_KERNEL.finditer(text))
        assert len(found) == text.count("// run: "), path
        ends = [match.start() for match in found[1:]] + [len(text)]
        for match, end in zip(found, ends, strict=True):
            first = text.count("\n", 0, match.start()) + 1
            lines = enumerate(text[match.start() : end].splitlines(), first)
            marks = ((number, _MISTAKE.search(line)) for number, line in lines)
            yield Annotated(
                path,
                match["name"],
                match["launch"],
                match["arguments"],
                match["gives"] or "True",
                tuple((number, mark[1]) for number, mark in marks if mark),
            )


@cache
def ptx_of(path: Path) -> str:
    """The PTX of a file, with its lines."""
    text = path.read_text()
    if _NEEDS_TOOLKIT in text and not toolkit_headers():
        pytest.skip("cooperative_groups.h comes with a CUDA toolkit, and none is installed")
    arch = _ARCH.search(text)
    unit = Unit(text, str(path), arch[1] if arch else "sm_80", [FOLDER])
    return compile_cuda(unit)[0]
