# SPDX-License-Identifier: Apache-2.0
"""`flash-attention tune`: time kernels on this GPU and write the table of the fastest."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table as Listing

from flash_attention.bench.grid import GRIDS
from flash_attention.cli.console import add_number_columns, errors, output, report_table
from flash_attention.errors import UnsupportedError
from flash_attention.tune import run
from flash_attention.tune.points import problems_of
from flash_attention.tune.store import default_store
from flash_attention.tune.table import Entry, Table

INTERRUPTED = 130  # exit code, as of a shell


def tune(
    table: Annotated[Path, typer.Option(help="the table to write, or to add to")],
    grid: Annotated[
        str, typer.Option(help=f"{', '.join(GRIDS)}, or a JSON file with a list of points")
    ] = "fa3",
    d_head: Annotated[str | None, typer.Option(help="comma-separated; else the grid's own")] = None,
    causal: Annotated[str | None, typer.Option(help="0, 1 or 0,1; else the grid's own")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp16 or bf16; else the grid's own")] = None,
    store: Annotated[
        Path | None, typer.Option(help="every timing, kept for the next run; else in the cache")
    ] = None,
    budget: Annotated[float, typer.Option(help="seconds to spend", min=1)] = run.BUDGET_S,
) -> None:
    """Find the fastest kernel for every problem of a grid, and write a table to choose by."""
    d_heads = None if d_head is None else _numbers(d_head, "--d-head")
    masks = None if causal is None else _masks(causal)
    asked = set(problems_of(grid, d_heads=d_heads, masks=masks, dtype=run.dtype_of(dtype)))
    kept = default_store() if store is None else store
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("tuning", total=len(asked))

        def report(at: run.Progress) -> None:
            minutes, seconds = divmod(round(at.seconds_left), 60)
            best = f"best {at.gain:.3f}x, at most {minutes}:{seconds:02} left"
            bar.update(task, description=f"{at.problem}: {best}", completed=at.number - 1)

        try:
            tuned = run.tune(
                grid,
                d_heads=d_heads,
                masks=masks,
                dtype=dtype,
                table=table,
                store=kept,
                budget=budget,
                report=report,
            )
        except KeyboardInterrupt:
            bar.stop()
            errors.print(
                f"interrupted; the timings are in {kept}, the table of what was finished in"
                f" {table}: the same command goes on from there",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            raise typer.Exit(INTERRUPTED) from None
    entries = [entry for entry in tuned.entries if entry.problem in asked]
    output.print(_listing(tuned, entries))
    if left := len(asked) - len(entries):
        output.print(f"{left} problems were not reached; use a larger --budget")
    output.print(f"in {table}", highlight=False, markup=False, soft_wrap=True)


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


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UnsupportedError(f"{option} is {text!r}; use numbers, comma-separated") from None


def _masks(text: str) -> list[bool]:
    masks = {"0": [False], "1": [True], "0,1": [False, True], "1,0": [False, True]}
    if text.replace(" ", "") not in masks:
        raise UnsupportedError(f"--causal is {text!r}; use 0, 1 or 0,1")
    return masks[text.replace(" ", "")]
