# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel of a file as the options say, and prints what is wrong and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.choices import GITHUB
from ptx_emulator.command.arguments import BF16, UserArgument, read_arguments
from ptx_emulator.command.options import Options
from ptx_emulator.command.reference import Compared, compare_arrays, load_reference
from ptx_emulator.command.table import aligned
from ptx_emulator.errors import DeadlockError, LaunchError
from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.machine.storage.storage import POISON
from ptx_emulator.report.annotations import annotation, finding_annotations
from ptx_emulator.report.findings import finding_lines, from_here, mend_lines
from ptx_emulator.report.hottest import hottest_places
from ptx_emulator.report.mends import DEADLOCK
from ptx_emulator.user_kernel.debugging import Debug
from ptx_emulator.user_kernel.kernel import UserKernel, UserRun

VALUES_SHOWN = 6


def run_kernel(options: Options) -> dict[str, Any]:
    """Run a kernel of a .cu or .ptx file and print the report, whose record is returned."""
    function = None if options.compare is None else load_reference(options.compare)
    arguments = read_arguments(options.arg, options.seed)
    kernel = UserKernel.of_file(
        options.source,
        options.entry,
        arch=options.arch,
        include=options.include,
        defines=options.define,
    )
    expected = [_for_reference(argument) for argument in arguments]
    cta, thread = options.thread
    debug = Debug(options.watch, options.breaks, cta, thread)
    try:
        result = kernel.run(
            *(argument.value for argument in arguments),
            names=[argument.name for argument in arguments],
            grid=options.grid,
            block=options.block,
            dynamic_smem=options.smem,
            cluster=options.cluster,
            schedule=options.schedule,
            seed=options.seed,
            patience=options.patience,
            debug=debug if options.watch or options.breaks else None,
        )
    except LaunchError as error:
        return _stopped(kernel, error, options)
    arrays = [argument for argument in arguments if argument.array is not None]
    compared = []
    if function is not None:
        compared = _compared(function, expected, arrays, result, options.tolerance)
    _print(kernel, result, arrays, options.schedule)
    _print_lines(map(str, compared))
    _print_findings(result.findings, result.places)
    for hottest in hottest_places(result.counters):
        heading = (hottest.title, "source", *hottest.numbers)
        print()
        _print_lines(aligned(heading, hottest.rows, numbers_from=2))
    if options.annotate == GITHUB:
        _print_lines(finding_annotations(result.findings))
        wrong = (each for each in compared if not each.ok)
        _print_lines(annotation(str(options.source), "wrong result", str(each)) for each in wrong)
    return _record(result, compared)


def _stopped(kernel: UserKernel, error: LaunchError, options: Options) -> dict[str, Any]:
    """Why the launch did not end, and what was found until then."""
    print(from_here(str(error)))
    findings: list[Finding] = []
    if isinstance(error.__cause__, DeadlockError):
        _print_lines(mend_lines([DEADLOCK]))
        found = [each for each in error.__cause__.findings if isinstance(each, Finding)]
        findings = [replace(finding, kernel=kernel.name) for finding in found]
        _print_findings(findings, ())
    if options.annotate == GITHUB:
        print(annotation(str(options.source), "the launch did not end", from_here(str(error))))
        _print_lines(finding_annotations(findings))
    return {
        "ok": False,
        "stopped": str(error),
        "findings": [finding.to_dict() for finding in findings],
    }


def _print_findings(findings: Sequence[Finding], places: Sequence[str]) -> None:
    print(f"findings: {len(findings) or 'none'}")
    _print_lines(finding_lines(findings, places=places))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _compared(
    function: Callable[..., object],
    given: Sequence[Any],
    arguments: Sequence[UserArgument],
    result: UserRun,
    tolerance: float | None,
) -> list[Compared]:
    """The arrays that the kernel or the reference changed, beside each other."""
    before = [value.copy() for value in given if isinstance(value, np.ndarray)]
    function(*given)
    wanted = [value for value in given if isinstance(value, np.ndarray)]
    after = [a.numbers(array) for a, array in zip(arguments, result.arrays, strict=True)]
    changed = [
        index
        for index, (old, new, got) in enumerate(zip(before, wanted, after, strict=True))
        if old.tobytes() != new.tobytes() or old.tobytes() != got.tobytes()
    ]
    return compare_arrays(
        [arguments[index].name for index in changed],
        [after[index] for index in changed],
        [wanted[index] for index in changed],
        [result.arrays[index].itemsize for index in changed],
        tolerance,
    )


def _for_reference(argument: UserArgument) -> Any:
    """What the reference gets: memory that nothing was written to holds poison there too."""
    array = argument.array
    if array is None:
        return argument.value
    if isinstance(array, np.ndarray):
        return argument.numbers(array.copy())
    shape = array.shape if isinstance(array.shape, tuple) else (array.shape,)
    nbytes = int(np.prod(shape)) * np.dtype(array.dtype).itemsize
    words: NDArray[Any] = np.full(-(-nbytes // 4), POISON, np.uint32)
    poison = words.view(np.uint8)[:nbytes].view(array.dtype).reshape(shape)
    return argument.numbers(poison)


def _print(
    kernel: UserKernel, result: UserRun, arguments: Sequence[UserArgument], schedule: str
) -> None:
    print(f"{kernel.name}, {kernel.program.kernel.target}, {schedule}: {result.seconds:.2f} s")
    if result.printed:
        print("printed:", *(f"  {line}" for line in result.printed.splitlines()), sep="\n")
    heading = ("array", "type", "shape", "smallest", "largest", "NaN", "begins with")
    rows = [(a.name, *_described(a, x)) for a, x in zip(arguments, result.arrays, strict=True)]
    _print_lines(aligned(heading, rows))
    for argument, array in zip(arguments, result.arrays, strict=True):
        if count := result.unwritten.get(argument.name):
            print(f"{argument.name}: {count} of {array.size} elements were never written")


def _described(argument: UserArgument, array: NDArray[Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, array.shape))
    wide = argument.numbers(array).astype(np.float64)
    numbers = wide[~np.isnan(wide)]
    ends = (
        [f"{value:.6g}" for value in (numbers.min(), numbers.max())] if numbers.size else ["", ""]
    )
    first = " ".join(f"{value:.5g}" for value in wide.reshape(-1)[:VALUES_SHOWN])
    kind = argument.kind if argument.kind == BF16 else array.dtype.name
    return (kind, shape, *ends, str(int(np.isnan(wide).sum())), first)


def _record(result: UserRun, compared: Sequence[Compared]) -> dict[str, Any]:
    return {
        "ok": not result.findings and all(each.ok for each in compared),
        "findings": [finding.to_dict() for finding in result.findings],
        "compared": [{**vars(each), "ok": each.ok} for each in compared],
        "printed": result.printed,
        "unwritten": dict(result.unwritten),
        "counters": result.counters.to_dict(),
    }
