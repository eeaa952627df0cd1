# SPDX-License-Identifier: Apache-2.0
"""`flash-attention emulate FILE`: anybody's kernel without a GPU, checked and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from flash_attention.emulator import DeadlockError, Finding, RefusedKernelError
from flash_attention.emulator.machine.storage import POISON
from flash_attention.errors import LaunchError, UnsupportedError, quoted
from flash_attention.files import write_record
from flash_attention.tools.commands.console import output, report_table
from flash_attention.tools.commands.counted import print_sites
from flash_attention.tools.commands.findings import print_findings, print_lines, print_stopped
from flash_attention.tools.commands.options import numbers_of
from flash_attention.tools.commands.user_arguments import read_arguments
from flash_attention.tools.user_reference import Compared, compare_arrays, load_reference
from flash_attention.user_kernel import Debug, Empty, UserKernel, UserRun
from flash_attention.user_kernel.kernel import DEFAULT_ARCH

VALUES_SHOWN = 6


def emulate_user_kernel(
    source: Path,
    *,
    entry: str | None,
    grid: str | None,
    block: str | None,
    arg: Sequence[str],
    smem: int,
    include: Sequence[Path],
    compare: str | None,
    tolerance: float | None,
    schedule: str,
    seed: int,
    arch: str | None,
    json: Path | None,
    watch: Sequence[str] = (),
    breaks: Sequence[str] = (),
    thread: str | None = None,
) -> None:
    """Run a kernel of a .cu or .ptx file: what is wrong with it, its output, what it does."""
    shape = {"grid": numbers_of("--grid", grid), "block": numbers_of("--block", block)}
    for name, sizes in shape.items():
        if sizes is None:
            raise UnsupportedError(f"say how large the {name} is, as in --{name} 16,16")
    function = None if compare is None else load_reference(compare)
    arguments = read_arguments(arg, seed)
    kernel = _loaded(source, entry, arch or DEFAULT_ARCH, include)
    expected = [deepcopy(_as_array(argument.value)) for argument in arguments]
    try:
        result = kernel.run(
            *(argument.value for argument in arguments),
            names=[argument.name for argument in arguments],
            **shape,  # type: ignore[arg-type]
            dynamic_smem=smem,
            schedule=schedule,
            seed=seed,
            debug=_debug(watch, breaks, thread),
        )
    except LaunchError as error:
        print_stopped(error)
        if isinstance(error.__cause__, DeadlockError):
            found = [f for f in error.__cause__.findings if isinstance(f, Finding)]
            print_findings([replace(finding, kernel=kernel.name) for finding in found])
        raise typer.Exit(1) from error
    names = [a.name for a in arguments if isinstance(a.value, np.ndarray | Empty)]
    compared = [] if function is None else _compared(function, expected, names, result, tolerance)
    _print(kernel, result, names, schedule)
    print_lines(str(each) for each in compared)
    print_findings(result.findings, places=result.places)
    print_sites(result.counters)
    if json is not None:
        write_record(json, _record(result, compared))
    if result.findings or not all(each.ok for each in compared):
        raise typer.Exit(1)


def _debug(watch: Sequence[str], breaks: Sequence[str], thread: str | None) -> Debug | None:
    if not watch and not breaks:
        return None
    match = re.fullmatch(r"(\d+),(\d+)", thread or "0,0")
    if match is None:
        raise UnsupportedError(f"--thread is {quoted(thread)}; pass the CTA and the thread: 0,5")
    cta, number = map(int, match.groups())
    return Debug(watch, breaks, cta, number, lambda text: print_lines(text.splitlines()))


def _compared(
    function: Callable[..., object],
    given: Sequence[Any],
    names: Sequence[str],
    result: UserRun,
    tolerance: float | None,
) -> list[Compared]:
    """The arrays that the kernel or the reference changed, beside each other."""
    before = [value.copy() for value in given if isinstance(value, np.ndarray)]
    function(*given)
    wanted = [value for value in given if isinstance(value, np.ndarray)]
    changed = [
        index
        for index, (old, new, got) in enumerate(zip(before, wanted, result.arrays, strict=True))
        if old.tobytes() != new.tobytes() or old.tobytes() != got.tobytes()
    ]
    return compare_arrays(
        [names[index] for index in changed],
        [result.arrays[index] for index in changed],
        [wanted[index] for index in changed],
        tolerance,
    )


def _loaded(source: Path, entry: str | None, arch: str, include: Sequence[Path]) -> UserKernel:
    try:
        return UserKernel.of_file(source, entry, arch=arch, include=include)
    except UnsupportedError as error:
        if isinstance(error.__cause__, RefusedKernelError):
            print_lines([str(error)])
            raise typer.Exit(2) from error
        raise


def _as_array(value: Any) -> Any:
    """What the reference gets: memory that nothing was written to holds poison there too."""
    if not isinstance(value, Empty):
        return value
    shape = value.shape if isinstance(value.shape, tuple) else (value.shape,)
    nbytes = int(np.prod(shape)) * np.dtype(value.dtype).itemsize
    words: NDArray[Any] = np.full(-(-nbytes // 4), POISON, np.uint32)
    return words.view(np.uint8)[:nbytes].view(value.dtype).reshape(shape)


def _print(kernel: UserKernel, result: UserRun, names: Sequence[str], schedule: str) -> None:
    print_lines(
        [f"{kernel.name}, {kernel.program.kernel.target}, {schedule}: {result.seconds:.2f} s"]
    )
    if result.printed:
        print_lines(["printed:", *(f"  {line}" for line in result.printed.splitlines())])
    table = report_table("array")
    for column in ("type", "shape", "smallest", "largest", "NaN", "begins with"):
        table.add_column(column)
    for array_name, array in zip(names, result.arrays, strict=True):
        table.add_row(array_name, *_described(array))
    output.print(table, highlight=False)


def _described(array: NDArray[Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, array.shape))
    wide = array.astype(np.float64)
    numbers = wide[~np.isnan(wide)]
    ends = (
        [f"{value:.6g}" for value in (numbers.min(), numbers.max())] if numbers.size else ["", ""]
    )
    first = " ".join(f"{value:.5g}" for value in wide.reshape(-1)[:VALUES_SHOWN])
    return (array.dtype.name, shape, *ends, str(int(np.isnan(wide).sum())), first)


def _record(result: UserRun, compared: Sequence[Compared]) -> dict[str, Any]:
    return {
        "ok": not result.findings and all(each.ok for each in compared),
        "findings": [finding.to_dict() for finding in result.findings],
        "compared": [{**vars(each), "ok": each.ok} for each in compared],
        "printed": result.printed,
        "counters": result.counters.to_dict(),
    }
