# SPDX-License-Identifier: Apache-2.0
"""A kernel of anybody's, made ready to run, and what a run of it gives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.choices import DEFAULT_ARCH, PATIENCE_S
from ptx_emulator.errors import EmulatorError, LaunchError, UnsupportedError, shown
from ptx_emulator.machine.lanes import GLOBAL_BASE
from ptx_emulator.machine.launch.counters import Counters
from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.program.program import Program, load_program
from ptx_emulator.ptx import parse
from ptx_emulator.running import run
from ptx_emulator.second_look import RunResult
from ptx_emulator.user_kernel.arguments import (
    Given,
    Placed,
    check_arguments,
    place_arguments,
)
from ptx_emulator.user_kernel.compiling import Unit, compile_cuda
from ptx_emulator.user_kernel.debugger import UserDebugger
from ptx_emulator.user_kernel.debugging import Debug, find_stops, read_watch
from ptx_emulator.user_kernel.places import place_of

Shape = int | tuple[int, ...]


@dataclass(frozen=True)
class UserRun:
    """What a run gives: the arrays after it, what was found, what was counted and printed."""

    arrays: tuple[NDArray[Any], ...]  # those among the arguments, in their order
    variables: Mapping[str, NDArray[Any]]  # __device__ and __constant__ ones, as bytes
    findings: tuple[Finding, ...]
    counters: Counters
    printed: str
    seconds: float
    places: tuple[str, ...]  # where the address of every finding lies: "partial + 256 bytes"
    unwritten: Mapping[str, int]  # elements of arrays given as Empty that nothing was written to


class UserKernel:
    """One kernel of a CUDA or PTX text."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.name = plain_name(program.kernel.name)

    @classmethod
    def of_file(
        cls,
        path: str | Path,
        entry: str | None = None,
        *,
        arch: str = DEFAULT_ARCH,
        include: Sequence[str | Path] = (),
        defines: Sequence[str] = (),
    ) -> UserKernel:
        """The kernel of a .cu or .ptx file; `entry` names it where there are several.

        A kernel that is a template is named with its arguments: `scale<float, 64>`. `arch` is what
        CUDA is compiled for, `include` are folders of headers, `defines` are macros: `N=64`.
        """
        path = Path(path)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UnsupportedError(f"cannot read {path}: {error}") from None
        if path.suffix == ".ptx":
            return cls.of_ptx(text, entry)
        folders = (path.parent, *include)
        return cls.of_source(text, entry, arch=arch, include=folders, defines=defines, name=path)

    @classmethod
    def of_source(
        cls,
        source: str,
        entry: str | None = None,
        *,
        arch: str = DEFAULT_ARCH,
        include: Sequence[str | Path] = (),
        defines: Sequence[str] = (),
        name: str | Path = "kernel.cu",
    ) -> UserKernel:
        """The kernel of a CUDA text. `name` stands for the text in reports."""
        folders = [Path(folder) for folder in include]
        if not source.isprintable() and re.search("[\0\ud800-\udfff]", source):
            raise UnsupportedError(f"{name} holds a character that no CUDA text has")
        expression = entry if entry is not None and "<" in entry else None
        unit = Unit(source, str(name), arch, folders, defines, expression)
        ptx, mangled = compile_cuda(unit)
        return cls.of_ptx(ptx, mangled or entry)

    @classmethod
    def of_ptx(cls, ptx: str, entry: str | None = None) -> UserKernel:
        """The kernel of a PTX text. Raises RefusedKernelError with all that is not emulated."""
        return cls(load_program(ptx, _find_entry(list(parse(ptx)), entry)))

    def run(
        self,
        *args: Given,
        grid: Shape,
        block: Shape,
        dynamic_smem: int = 0,
        cluster: Shape | None = None,
        variables: Mapping[str, NDArray[Any]] | None = None,
        names: Sequence[str] | None = None,
        schedule: str = "lockstep",
        seed: int = 0,
        checks: bool = True,
        patience: float | None = PATIENCE_S,
        debug: Debug | None = None,
    ) -> UserRun:
        """Run the kernel over a grid, as `kernel<<<grid, block, dynamic_smem>>>(args...)` would.

        - `args`: NumPy arrays, which hold the results afterwards; Empty for memory that nothing was
          written to; Tensor for what TMA moves; numbers; Struct, Pointer, bytes or ctypes.
        - `cluster`: the CTAs of a cluster; None: as __cluster_dims__ says.
        - `variables`: what __constant__ and __device__ variables hold before the launch.
        - `names`: of the arguments, for reports.
        - `debug`: what to tell of lines of the source, and of elements of arrays.
        - `schedule`, `seed`, `checks`, `patience`: as in `ptx_emulator.run`.

        Raises LaunchError if the kernel deadlocks, traps or fails an assertion.
        """
        params = self.program.kernel.params
        sizes = three_sizes("grid", grid), three_sizes("block", block)
        clusters = None if cluster is None else three_sizes("cluster", cluster)
        called = _names_of(args, names)
        check_arguments(params, args, called)
        memory = GlobalMemory()
        self._fill(variables or {}, memory)
        arguments, arrays = place_arguments(params, args, called, memory)
        debugger = None if debug is None else self._debugger(debug, arrays)
        program = Program(self.program.kernel, debugger.hooks) if debugger else self.program
        start = time.perf_counter()
        try:
            result = run(
                program,
                memory,
                grid=sizes[0],
                block=sizes[1],
                args=arguments,
                dynamic_smem=dynamic_smem,
                cluster=clusters,
                schedule=schedule,
                seed=seed,
                checks=checks,
                patience=patience,
                debugger=debugger,
            )
        except UnsupportedError:  # what the debugger is asked for
            raise
        except EmulatorError as error:
            raise LaunchError(str(error).replace(self.program.kernel.name, self.name)) from error
        seconds = time.perf_counter() - start
        unwritten = _unwritten(arrays, memory) if checks else {}
        return self._outcome(result, seconds, arrays, memory, unwritten)

    def _debugger(self, debug: Debug, arrays: Sequence[Placed]) -> UserDebugger:
        known = {placed.name: placed for placed in arrays}
        stops = find_stops(self.program.kernel, self.program.blocks, debug.breaks)
        return UserDebugger(debug, [read_watch(text) for text in debug.watch], stops, known)

    def _outcome(
        self,
        result: RunResult,
        seconds: float,
        arrays: Sequence[Placed],
        memory: GlobalMemory,
        unwritten: Mapping[str, int],
    ) -> UserRun:
        """Write the arrays back to where they came from, and gather what was found."""
        after = [memory.read(placed.address, placed.dtype, placed.shape) for placed in arrays]
        for placed, array in zip(arrays, after, strict=True):
            if placed.given is not None and placed.given.flags.writeable:
                placed.given[...] = array
        module = {
            variable.name: memory.read(memory.variable(variable), np.uint8, (variable.size or 0,))
            for variable in self.program.kernel.module
        }
        findings = tuple(replace(finding, kernel=self.name) for finding in result.findings)
        return UserRun(
            tuple(after),
            module,
            findings,
            result.counters,
            result.printed,
            seconds,
            tuple(place_of(finding.address, self.program, memory) for finding in findings),
            unwritten,
        )

    def _fill(self, given: Mapping[str, NDArray[Any]], memory: GlobalMemory) -> None:
        known = {variable.name: variable for variable in self.program.kernel.module}
        for name, array in given.items():
            if name not in known or known[name].size != array.nbytes:
                sizes = ", ".join(f"{v.name} ({v.size} bytes)" for v in known.values()) or "none"
                raise UnsupportedError(
                    f"{name} of {array.nbytes} bytes is no variable of the kernel; it has {sizes}"
                )
            memory.set_variable(known[name], array)


def _unwritten(arrays: Sequence[Placed], memory: GlobalMemory) -> dict[str, int]:
    """How many elements of arrays neither the host nor the kernel wrote, of those with any."""
    counts = {}
    for placed in arrays:
        allocation = memory.find(placed.address - GLOBAL_BASE)
        if allocation is not None and (count := allocation.count_unwritten(placed.dtype.itemsize)):
            counts[placed.name] = count
    return counts


def three_sizes(what: str, shape: Shape) -> tuple[int, int, int]:
    """A grid or a block in x, y and z."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, Integral) for size in sizes):
        raise UnsupportedError(f"{what} is {shown(shape)}; pass one to three whole numbers")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def _names_of(args: Sequence[Given], names: Sequence[str] | None) -> list[str]:
    """What to call the arguments."""
    if names is None:
        return [f"argument {index}" for index in range(len(args))]
    if len(names) != len(args):
        raise UnsupportedError(f"{len(names)} names for {len(args)} arguments; pass one for each")
    return list(names)


def plain_name(mangled: str) -> str:
    """The name of a kernel in C++, without namespaces and types."""
    prefix = re.match(r"_Z(N?)", mangled)
    if prefix is None:
        return mangled
    name, rest = mangled, mangled[prefix.end() :]
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        name, rest = rest[match.end() : end], rest[end:]
        if not prefix[1]:  # what follows are the types of the parameters
            break
    return name


def _find_entry(kernels: Sequence[str], entry: str | None) -> str:
    """The kernel that is meant: by its name in PTX, or in C++."""
    plain = list(map(plain_name, kernels))
    known = plain if len(set(plain)) == len(plain) else kernels
    there = f"the text has {', '.join(known) or 'none'}"
    if entry is None:
        if not kernels:
            raise UnsupportedError(
                "there is no kernel in the text; one that is a template is named with its"
                " arguments, as in scale<float, 64>"
            )
        if len(kernels) != 1:
            raise UnsupportedError(f"say which kernel is meant; {there}")
        return kernels[0]
    found = [name for name in kernels if entry in (name, plain_name(name))]
    if len(found) != 1:
        raise UnsupportedError(f"{len(found)} kernels are called {shown(entry)}; {there}")
    return found[0]
