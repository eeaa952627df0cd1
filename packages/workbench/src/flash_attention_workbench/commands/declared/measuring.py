# SPDX-License-Identifier: Apache-2.0
"""Commands that time kernels, and the page of what was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flash_attention_workbench.bench.names import DEFAULT_PEERS, FA3_VARIABLE, GRID_NAMES, PEERS
from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.declared.options import (
    GridDHeadsOption,
    GridDTypeOption,
    GridMaskOption,
    GridSeqOption,
    JsonOption,
    PassOption,
)

TUNABLE = ("fa3", "seed", "prefill_gqa", "backward_gqa")
BUDGET_S = 420.0


def bench(
    grid: Annotated[
        str, typer.Option(help=f"{', '.join(GRID_NAMES)}, or a file of problems")
    ] = "fa3",
    dtype: GridDTypeOption = None,
    d_head: GridDHeadsOption = None,
    causal: GridMaskOption = None,
    seq: GridSeqOption = None,
    peers: Annotated[str, typer.Option(help=f"out of {','.join(PEERS)}; or none")] = ",".join(
        DEFAULT_PEERS
    ),
    configs: Annotated[
        Path | None,
        typer.Option(
            help="a file of kernel configs, short forms one a line; else the set"
            " $FLASH_ATTENTION_KERNELS"
        ),
    ] = None,
    heuristic: Annotated[
        bool, typer.Option("--heuristic", help="also the config that is chosen without tables")
    ] = False,
    repeats: Annotated[int, typer.Option(help="samples of each contender", min=1)] = 25,
    hot: Annotated[
        bool, typer.Option("--hot/--cold", help="L2 as the run before left it, or flushed")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="every contender replays a CUDA graph of its kernels")
    ] = False,
    fa3: Annotated[Path | None, typer.Option(help=f"FA3's library, else ${FA3_VARIABLE}")] = None,
    json: JsonOption = None,
    csv: Annotated[Path | None, typer.Option(help="write a line a point here")] = None,
    plot: Annotated[Path | None, typer.Option(help="write a PNG here")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="measure nothing: two --json files beside each other"),
    ] = None,
) -> None:
    """Time attention beside its peers, every output checked; or compare two such runs.

    Contenders take turns in one process, in another order every round; a number is the median.
    Exit code 1 when an output of ours is wrong.
    """
    given = locals()
    from flash_attention_workbench.commands.bench.command import bench as run

    with json_file(json) as given["json"]:
        run(**given)


def tune(
    table: Annotated[Path, typer.Option(help="the table to write, or to add to")],
    grid: Annotated[
        str, typer.Option(help=f"{', '.join(TUNABLE)}, or a file of problems as bench takes it")
    ] = "fa3",
    dtype: GridDTypeOption = None,
    d_head: GridDHeadsOption = None,
    causal: GridMaskOption = None,
    seq: GridSeqOption = None,
    store: Annotated[
        Path | None, typer.Option(help="every timing, kept for the next run; else in the cache")
    ] = None,
    budget: Annotated[float, typer.Option(help="seconds to spend", min=1)] = BUDGET_S,
    family: Annotated[
        str | None, typer.Option(help="sm80 or sm90: whose kernels; those of this GPU if left out")
    ] = None,
    pass_: PassOption = "forward",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="for gradients with the same bits in every run")
    ] = False,
) -> None:
    """Find the fastest kernel for every problem of a grid, and write a table to choose by.

    $FLASH_ATTENTION_KERNELS names the set that is tried: autotune unless set, progression, or all.
    """
    given = locals()
    from flash_attention_workbench.commands.tune import tune as run

    run(**given)


def report(
    results: Annotated[
        Path | None,
        typer.Option(
            help="the folder of results files; ./results if left out, and where there is none the"
            " results that come with the package"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
    tuner: Annotated[
        Path | None, typer.Option(help="a tuner's store, if it is not in that folder")
    ] = None,
) -> None:
    """One HTML page of everything that was measured: it needs no network and no other file."""
    given = locals()
    from flash_attention_workbench.commands.report import report as run

    run(**given)
