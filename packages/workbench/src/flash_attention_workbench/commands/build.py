# SPDX-License-Identifier: Apache-2.0
"""`flash-attention build`: compile a set of kernels, or those of a model, ahead of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from rich.table import Table

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.compile.cache_folder import cache_dir, shown
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import get_kernel_configs
from flash_attention.warm_up import kernels_for
from flash_attention_workbench.commands.console import output, progress, report_table
from flash_attention_workbench.commands.models import EXAMPLE, WORDS, read_model
from flash_attention_workbench.commands.options import AnyPassOption, parse_arches, pass_named
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
SET_HELP = "progression (the ladder), autotune or all; else $FLASH_ATTENTION_KERNELS or progression"


def build(
    set_name: Annotated[
        str | None, typer.Option("--set", help=SET_HELP, show_default=False)
    ] = None,
    pass_: AnyPassOption = "forward",
    model: Annotated[list[str] | None, typer.Option(help=MODEL_HELP)] = None,
    arch: Annotated[
        str, typer.Option("--arch", help=f"comma-separated, out of {', '.join(ARCHES)}")
    ] = DEFAULT_ARCH.name,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="processes; 0 takes one a core", min=0)
    ] = 0,
) -> None:
    """Fill the cache with the kernels of a set or a model, for images and read-only machines."""
    arches = parse_arches(arch)
    if model:
        if set_name is not None or pass_named(pass_) is not Pass.FORWARD:
            raise UnsupportedError(
                "--model is given, and stands for itself; leave out --set, --pass"
            )
        _build_models(model, arches, jobs or usable_cores())
        return
    todo = [
        job
        for target in arches
        for config in get_kernel_configs(set_name, target, pass_named(pass_))
        for job in jobs_of(config, target)
    ]
    outcomes: list[Outcome] = []
    with progress() as bar, closing(precompile(todo, jobs or usable_cores())) as compiling:
        task = bar.add_task("compiling", total=len(todo))
        for outcome in compiling:
            outcomes.append(outcome)
            bar.advance(task)
    output.print(_summary(outcomes))
    output.print(f"in {shown(cache_dir())}", highlight=False, markup=False, soft_wrap=True)
    if any(outcome.fate in ("failed", "not kept") for outcome in outcomes):
        raise typer.Exit(1)


def _build_models(models: Sequence[str], arches: Sequence[Arch], processes: int) -> None:
    """Compile what `warm_up` would for calls of these models."""
    calls = [read_model(text) for text in models]
    units = dict.fromkeys(
        unit for target in arches for call in calls for unit in kernels_for(call, target.name)
    )
    with progress() as bar, closing(precompile_units(list(units), processes)) as compiling:
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
