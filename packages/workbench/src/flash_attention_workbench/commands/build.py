# SPDX-License-Identifier: Apache-2.0
"""`flash-attention build`: compile a set of kernels, or those of a model, ahead of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from rich.table import Table

from flash_attention.arch import ARCHES, DEFAULT_ARCH, MEASURED_ARCH, Arch
from flash_attention.compile.cache_folder import cache_dir, shown
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.kernel_configs import DType, get_kernel_configs
from flash_attention.warm_up import TYPICAL_SMS, kernels_for
from flash_attention_workbench.bench.grid_choice import (
    NAMED_GRIDS,
    Part,
    grid_dtype,
    grid_measured,
    grid_points,
    seed_and_count,
)
from flash_attention_workbench.bench.kernels import units_of_grid
from flash_attention_workbench.commands.console import output, progress, report_table
from flash_attention_workbench.commands.models import EXAMPLE, WORDS, read_model
from flash_attention_workbench.commands.options import (
    AnyPassOption,
    GridCountOption,
    GridDTypeOption,
    GridSeedOption,
    parse_arches,
    pass_named,
)
from flash_attention_workbench.commands.precompile import (
    Outcome,
    jobs_of,
    precompile,
    precompile_units,
)
from flash_attention_workbench.cores import usable_cores

MODEL_HELP = (
    f"the attention layers of a served model instead, out of {', '.join(WORDS)}, as in '{EXAMPLE}';"
    " once for each kind of layer"
)
GRID_HELP = (
    f"what `bench` measures of a grid instead: {', '.join(NAMED_GRIDS)}, or a file of problems;"
    " with --arch sm_90 as on an H200"
)
H200 = Setting(MEASURED_ARCH, 132, device="NVIDIA H200")  # its multiprocessors and tables
SET_HELP = "progression (the ladder), autotune or all; else $FLASH_ATTENTION_KERNELS or progression"


def build(
    set_name: Annotated[
        str | None, typer.Option("--set", help=SET_HELP, show_default=False)
    ] = None,
    pass_: AnyPassOption = "forward",
    model: Annotated[list[str] | None, typer.Option(help=MODEL_HELP)] = None,
    grid: Annotated[str | None, typer.Option(help=GRID_HELP)] = None,
    dtype: GridDTypeOption = None,
    seed: GridSeedOption = None,
    count: GridCountOption = None,
    arch: Annotated[
        str, typer.Option("--arch", help=f"comma-separated, out of {', '.join(ARCHES)}")
    ] = DEFAULT_ARCH.name,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="processes; 0 takes one a core", min=0)
    ] = 0,
) -> None:
    """Fill the cache with the kernels of a set, a model or a grid, for images, read-only machines,
    and GPUs that are paid by the minute."""
    arches, processes = parse_arches(arch), jobs or usable_cores()
    _check_one_is_given(model, grid, set_name is not None or pass_named(pass_) is not Pass.FORWARD)
    if grid is not None:
        _build_units(_of_grid(grid, (dtype, seed, count), arches), processes)
        return
    of_grid = {"--dtype": dtype, "--seed": seed, "--count": count}
    if given := [name for name, value in of_grid.items() if value is not None]:
        raise UnsupportedError(f"{', '.join(given)} is for --grid; leave it out, or pass --grid")
    if model:
        _build_units(_of_models(model, arches), processes)
        return
    todo = [
        job
        for target in arches
        for config in get_kernel_configs(set_name, target, pass_named(pass_))
        for job in jobs_of(config, target)
    ]
    outcomes: list[Outcome] = []
    with progress() as bar, closing(precompile(todo, processes)) as compiling:
        task = bar.add_task("compiling", total=len(todo))
        for outcome in compiling:
            outcomes.append(outcome)
            bar.advance(task)
    output.print(_summary(outcomes))
    output.print(f"in {shown(cache_dir())}", highlight=False, markup=False, soft_wrap=True)
    if any(outcome.fate in ("failed", "not kept") for outcome in outcomes):
        raise typer.Exit(1)


def _check_one_is_given(model: object, grid: object, of_set: bool) -> None:
    """Refuse two kinds of kernels at once."""
    name = "--model" if model else "--grid"
    if (model or grid) and of_set:
        raise UnsupportedError(f"{name} is given, and stands for itself; leave out --set, --pass")
    if model and grid:
        raise UnsupportedError("--model and --grid are given; leave out one of them")


def _of_models(models: Sequence[str], arches: Sequence[Arch]) -> tuple[Unit, ...]:
    """What `warm_up` would compile for calls of these models."""
    calls = [read_model(text) for text in models]
    units = (unit for target in arches for call in calls for unit in kernels_for(call, target.name))
    return tuple(dict.fromkeys(units))


def _of_grid(
    grid: str, asked: tuple[str | None, int | None, int | None], arches: Sequence[Arch]
) -> tuple[Unit, ...]:
    """What `bench` would compile for a grid."""
    dtype, seed, count = asked
    first, most = seed_and_count(grid, seed, count)
    points = grid_points(grid, Part(seed=first, count=most))
    element = DType.from_string(dtype) if dtype else grid_dtype(grid)
    units: dict[Unit, None] = {}
    for target in arches:
        setting = H200 if target is MEASURED_ARCH else Setting(target, TYPICAL_SMS)
        units |= dict.fromkeys(units_of_grid(points, element, grid_measured(grid), setting))
    if not units:
        names = ", ".join(target.name for target in arches)
        raise UnsupportedError(
            f"no kernel of {names} takes a problem of {grid}; `flash-attention explain --shape`"
            " says why one is refused"
        )
    return tuple(units)


def _build_units(units: Sequence[Unit], processes: int) -> None:
    """Compile kernels, and list them."""
    with progress() as bar, closing(precompile_units(units, processes)) as compiling:
        task = bar.add_task("compiling", total=len(units))
        failures = []
        for reason in compiling:
            failures += [reason] if reason else []
            bar.advance(task)
    table = report_table("arch")
    table.add_column("kernel", overflow="fold")
    for unit in units:
        table.add_row(unit.target, unit.name)
    output.print(table)
    for text in (*failures, f"in {shown(cache_dir())}"):
        output.print(text, highlight=False, markup=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _summary(outcomes: list[Outcome]) -> Table:
    table = report_table("arch")
    for column in ("fate", "kernels", "why"):
        table.add_column(column)
    counts = Counter((o.job.arch.name, o.fate, _first_line(o.reason)) for o in outcomes)
    for (arch, fate, reason), count in sorted(counts.items()):
        table.add_row(arch, fate, str(count), reason)
    return table


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
