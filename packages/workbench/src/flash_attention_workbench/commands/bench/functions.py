# SPDX-License-Identifier: Apache-2.0
"""`flash-attention bench --grid functions`: score and mask functions beside the built-in kernels
and torch's flex_attention."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.table import Table

from flash_attention.call.dtype import DType
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import write_record
from flash_attention.launch.plans import plan_for
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.clocks import read_clocks
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.function_case import (
    BUILT_IN,
    CONTENDERS,
    OURS,
    FunctionCase,
)
from flash_attention_workbench.bench.function_costs import first_calls, plans_ms
from flash_attention_workbench.bench.function_run import (
    FunctionRow,
    How,
    measure_function,
    summary,
)
from flash_attention_workbench.bench.functions import (
    FUNCTIONS,
    KINDS,
    FunctionPoint,
    function_points,
)
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers import DEFAULT_PEERS
from flash_attention_workbench.bench.peers.flex_functions import FLEX
from flash_attention_workbench.child import Note
from flash_attention_workbench.commands.bench.settings import check_gpu
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    print_lines,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.options import numbers_of
from flash_attention_workbench.commands.precompile import precompile_units
from flash_attention_workbench.cores import usable_cores
from flash_attention_workbench.tune.compiling import Compilers

PLANS, FIRST_CALLS = "plans", "first_calls"
COSTS = (PLANS, FIRST_CALLS)  # which --function also names
MOST_FLEX = 12  # processes that compile flex_attention at the same time, each on the GPU


@dataclass(frozen=True)
class AskedFunctions:
    """The part of the grid that the options name."""

    points: tuple[FunctionPoint, ...]
    costs: tuple[str, ...]
    words: tuple[str, ...]  # the options

    @classmethod
    def of(
        cls, functions: str | None, d_head: str | None, seq: str | None, pass_: str | None
    ) -> AskedFunctions:
        """Read the options. Without --function there is everything."""
        names = None if functions is None else [name.strip() for name in functions.split(",")]
        for name in names or ():
            checked_choice("function", name, (*KINDS, *COSTS))
        costs = COSTS if names is None else tuple(name for name in COSTS if name in names)
        kept = None if names is None else [name for name in names if name not in COSTS]
        passes = None if pass_ is None else [name.strip() for name in pass_.split(",")]
        sizes = (numbers_of("--d-head", d_head), numbers_of("--seq", seq))
        points = function_points(kept, *sizes, passes)
        given = {"--function": functions, "--d-head": d_head, "--seq": seq, "--pass": pass_}
        words = (word for option, text in given.items() if text for word in (option, text))
        return cls(tuple(points), costs, tuple(words))


def bench_functions(
    peers: str,
    asked: AskedFunctions,
    timing: tuple[int, bool],
    json: Path | None,
) -> None:
    """Measure the points that are asked for, and what functions cost besides. `timing` is repeats
    and hot."""
    if peers not in (",".join(DEFAULT_PEERS), FLEX, "none"):
        raise UnsupportedError(f"--peers is {quoted(peers)}; {FUNCTIONS} has {FLEX}, or none")
    check_gpu()
    device = torch.device("cuda", torch.cuda.current_device())
    _measure(asked, How(device, *timing, flex=peers != "none"), json)


def _measure(asked: AskedFunctions, how: How, json: Path | None) -> None:
    facts: dict[str, Any] = {
        **describe(how.device),
        "command": command_of(asked, how),
        "grid": FUNCTIONS,
        "dtype": DType.BF16.name,
        "repeats": how.repeats,
        "l2": "hot" if how.hot else "cold",
        "clocks": {"before": _clocks(how.device)},
    }
    rows: list[FunctionRow] = []
    costs: dict[str, Any] = {"plans_ms": {}, "first_calls": {}}

    def save() -> None:
        facts["clocks"]["after"] = _clocks(how.device)
        if json is not None:
            write_record(json, {**facts, "rows": [asdict(row) for row in rows], **costs})

    with quiet_compiles(), progress() as bar:
        compile_points(asked.points, how)
        task = bar.add_task("timing", total=len(asked.points))
        for point in asked.points:
            bar.update(task, description=f"timing {point.label}")
            rows.append(measure_function(point, how))
            torch.cuda.empty_cache()
            save()
            bar.advance(task)
        if PLANS in asked.costs:
            costs["plans_ms"] = plans_ms(how)
            save()
        if FIRST_CALLS in asked.costs:
            bar.add_task("first calls in new processes", total=None)
            costs["first_calls"] = first_calls((OURS, FLEX) if how.flex else (OURS,))
        save()
    output.print(table_of(rows))
    print_lines([*summary(rows), *cost_lines(costs), f"{facts['device']}, L2 {facts['l2']}"])
    print_lines([f"again: {facts['command']}"])
    print_lines([f"written: {json}"] if json is not None else [])
    if not all(row.ok for row in rows):
        raise typer.Exit(1)


def compile_points(points: Sequence[FunctionPoint], how: How) -> None:
    """Fill our compile cache and Inductor's on all cores. What fails says so again when it is
    run."""
    units: dict[Unit, None] = {}
    for shape in _shapes(points):
        units |= dict.fromkeys(_units(FunctionCase.of(shape, how.device)))
        torch.cuda.empty_cache()
    for _ in precompile_units(list(units), usable_cores()):
        pass
    if not how.flex:
        return
    compilers = Compilers(min(MOST_FLEX, usable_cores(), len(points)), _compile_flex)
    try:
        for _ in compilers.answers([(point, str(how.device)) for point in points]):
            pass
    finally:
        compilers.close()


def _shapes(points: Sequence[FunctionPoint]) -> list[FunctionPoint]:
    """The forward passes of points."""
    return list(dict.fromkeys(replace(point, measured=Measured.FORWARD) for point in points))


def _units(case: FunctionCase) -> Iterator[Unit]:
    """The kernels of both passes of ours and of the built-in kernel."""
    for name in (OURS, BUILT_IN):
        with suppress(UnsupportedError):  # told when the point is measured
            call = case.forward_call(name)
            for asked in (call, call.with_lse(), case.backward_call(name)):
                yield from (step.unit for step in plan_for(asked).recipe.steps)


def _compile_flex(note: Note, point: FunctionPoint, device: str) -> None:
    """Compile flex_attention for a point into Inductor's cache, in a process that does nothing
    else."""
    from torch._inductor import config

    config.compile_threads = 1
    with torch.set_grad_enabled(point.measured is Measured.BACKWARD):
        case = FunctionCase.of(point, device)
        with suppress(Exception):  # told when the point is measured
            case.contender(FLEX).run()
    torch.cuda.empty_cache()


def command_of(asked: AskedFunctions, how: How) -> str:
    """The command that repeats a run, whatever the defaults are then."""
    words = ["flash-attention", "bench", "--grid", FUNCTIONS, *asked.words]
    words += ["--peers", FLEX if how.flex else "none", "--repeats", str(how.repeats)]
    return shlex.join([*words, "--hot" if how.hot else "--cold"])


def table_of(rows: Sequence[FunctionRow]) -> Table:
    """A line a point: milliseconds of every contender, and ours beside the others."""
    table = report_table("function")
    columns = ("d", "batch x rows", "pass", *(f"{name}, ms" for name in CONTENDERS))
    add_number_columns(
        table, (*columns, "TFLOP/s", "time, built-in = 1", "speed, flex = 1", "error")
    )
    for row in rows:
        times = [f"{row.ms[name]:.4f}" if name in row.ms else "" for name in CONTENDERS]
        speed = "" if row.tflops is None else f"{row.tflops:.0f}"
        ratios = (row.of_built_in, row.of_flex)
        told = ["" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        error = f"{row.error_ratio.get(OURS, float('nan')):.2f}"
        point = (str(row.d), f"{row.batch} x {row.seq}", row.measured.lower())
        table.add_row(row.function, *point, *times, speed, *told, error)
    return table


def cost_lines(costs: Mapping[str, Any]) -> list[str]:
    """What planning and first calls take, a line each."""
    lines = [
        f"blocks of {function}, {int(tokens):,} tokens: {ms:.4f} ms"
        for function, of in costs["plans_ms"].items()
        for tokens, ms in of.items()
    ]
    return lines + [
        f"{contender}, {caches}, {what}: {ms:,.1f} ms"
        for contender, of in costs["first_calls"].items()
        for caches, named in of.items()
        for what, ms in named.items()
    ]


def _clocks(device: torch.device) -> dict[str, float | None] | None:
    clocks = read_clocks(device)
    return None if clocks is None else asdict(clocks)
