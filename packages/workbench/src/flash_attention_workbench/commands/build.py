# SPDX-License-Identifier: Apache-2.0
"""`flash-attention build`: compile a set of kernels ahead of time."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Annotated

import typer
from rich.table import Table

from flash_attention.arch import ARCHES, DEFAULT_ARCH
from flash_attention.compile.cache_folder import cache_dir, shown
from flash_attention.kernel_configs import get_kernel_configs
from flash_attention_workbench.commands.console import output, progress, report_table
from flash_attention_workbench.commands.options import PassOption, parse_arches, pass_named
from flash_attention_workbench.commands.precompile import Outcome, jobs_of, precompile
from flash_attention_workbench.cores import usable_cores

SET_HELP = "progression (the ladder), autotune or all; else $FLASH_ATTENTION_KERNELS or progression"


def build(
    set_name: Annotated[
        str | None, typer.Option("--set", help=SET_HELP, show_default=False)
    ] = None,
    pass_: PassOption = "forward",
    arch: Annotated[
        str, typer.Option("--arch", help=f"comma-separated, out of {', '.join(ARCHES)}")
    ] = DEFAULT_ARCH.name,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="processes; 0 takes one a core", min=0)
    ] = 0,
) -> None:
    """Fill the cache with the kernels of a set, for images and read-only machines."""
    arches = parse_arches(arch)
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
