# SPDX-License-Identifier: Apache-2.0
"""`flash-attention tune`: time kernels on this GPU and write the table of the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table as Listing

from flash_attention.choose.table import Entry, Table
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.grid_choice import seed_and_count
from flash_attention_workbench.bench.random_grid import RANDOM_GRIDS
from flash_attention_workbench.commands.console import (
    add_number_columns,
    errors,
    output,
    report_table,
)
from flash_attention_workbench.commands.interrupt import INTERRUPTED
from flash_attention_workbench.commands.options import (
    AnyPassOption,
    GridCountOption,
    GridDHeadsOption,
    GridDTypeOption,
    GridMaskOption,
    GridSeedOption,
    GridSeqOption,
    numbers_of,
    pass_named,
)
from flash_attention_workbench.tune import run
from flash_attention_workbench.tune.points import TUNABLE, problems_of, random_points
from flash_attention_workbench.tune.store import default_store


def tune(
    table: Annotated[Path, typer.Option(help="the table to write, or to add to")],
    grid: Annotated[
        str, typer.Option(help=f"{', '.join(TUNABLE)}, or a file of problems as bench takes it")
    ] = "fa3",
    dtype: GridDTypeOption = None,
    d_head: GridDHeadsOption = None,
    causal: GridMaskOption = None,
    seq: GridSeqOption = None,
    seed: GridSeedOption = None,
    count: GridCountOption = None,
    store: Annotated[
        Path | None, typer.Option(help="every timing, kept for the next run; else in the cache")
    ] = None,
    budget: Annotated[float, typer.Option(help="seconds to spend", min=1)] = run.BUDGET_S,
    family: Annotated[
        str | None, typer.Option(help="sm80 or sm90: whose kernels; those of this GPU if left out")
    ] = None,
    pass_: AnyPassOption = "forward",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="for gradients with the same bits in every run")
    ] = False,
) -> None:
    """Find the fastest kernel for every problem of a grid, and write a table to choose by.

    $FLASH_ATTENTION_KERNELS names the set that is tried: autotune unless set, progression, or all.
    """
    d_heads, seq_lens = numbers_of("--d-head", d_head), numbers_of("--seq", seq)
    masks = None if causal is None else (causal,)
    element = DType.from_string(dtype) if dtype else None
    part: dict[str, Any] = {
        "d_heads": d_heads,
        "masks": masks,
        "seq_lens": seq_lens,
        "dtype": element,
        "deterministic": deterministic,
    }
    drawn = seed_and_count(grid, seed, count)
    problems = random_points(grid, *drawn) if grid in RANDOM_GRIDS else grid
    asked = set(problems_of(problems, pass_=pass_named(pass_), **part))
    kept = default_store() if store is None else store
    part |= {"pass_": pass_, "table": table, "store": kept, "budget": budget, "family": family}
    try:
        tuned = _tuned(problems, len(asked), **part)
    except KeyboardInterrupt:
        _say_interrupted(kept, table)
        raise typer.Exit(INTERRUPTED) from None
    entries = [entry for entry in tuned.entries if entry.problem in asked]
    output.print(_listing(tuned, entries))
    if left := len(asked) - len(entries):
        output.print(f"{left} problems have no entry; where time ran out, use a larger --budget")
    output.print(f"in {table}", highlight=False, markup=False, soft_wrap=True)


def _tuned(grid: str | Sequence[Point], problems: int, **how: Any) -> Table:
    """The table that a run writes, while a bar says how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("tuning", total=problems)

        def report(at: run.Progress) -> None:
            minutes, seconds = divmod(round(at.seconds_left), 60)
            best = f"best {at.gain:.3f}x, at most {minutes}:{seconds:02} left"
            bar.update(task, description=f"{at.problem}: {best}", completed=at.number - 1)

        def tell(line: str) -> None:
            output.print(line, highlight=False, soft_wrap=True)

        return run.tune(grid, **how, report=report, tell=tell)


def _say_interrupted(kept: Path, table: Path) -> None:
    errors.print(
        f"interrupted; the timings are in {kept}, the table of what was finished in"
        f" {table}: the same command goes on from there",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _listing(tuned: Table, entries: list[Entry]) -> Listing:
    mean = geometric_mean(entry.gain for entry in entries) if entries else 1.0
    title = f"{tuned.device}: {mean:.3f} times the heuristic's speed in geometric mean"
    listing = report_table("problem", title=title)
    add_number_columns(listing, ("ms", "heuristic's ms", "gain"))
    listing.add_column("config")
    for entry in entries:
        listing.add_row(
            str(entry.problem),
            f"{entry.ms:.4f}",
            f"{entry.heuristic_ms:.4f}",
            f"{entry.gain:.3f}",
            "the heuristic's" if entry.keeps_heuristic else entry.config.short_form(),
        )
    return listing
