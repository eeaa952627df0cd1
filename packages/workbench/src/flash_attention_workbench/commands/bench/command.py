# SPDX-License-Identifier: Apache-2.0
"""`flash-attention bench`: kernels beside their peers over a grid, timed, checked, written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.files import check_writable
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.agreement import agreements, pair_up
from flash_attention_workbench.bench.beside_fa3 import Asked, BesideFa3
from flash_attention_workbench.bench.clocks import Clocks, read_clocks
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.functions import FUNCTIONS
from flash_attention_workbench.bench.gradient_run import measure_gradients
from flash_attention_workbench.bench.gradient_summary import gradient_means
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_choice import NAMED_GRIDS, grid_dtype, grid_measured
from flash_attention_workbench.bench.grid_record import load_json, save_csv, save_json
from flash_attention_workbench.bench.grid_run import OURS, GridRow, PointResult, measure_point
from flash_attention_workbench.bench.grid_summary import slower_than_peers, summary
from flash_attention_workbench.bench.peers import DEFAULT_PEERS, PEERS, checked_names
from flash_attention_workbench.bench.peers.fa3 import FA3_VARIABLE
from flash_attention_workbench.bench.peers.gradients import PEER_NAMES
from flash_attention_workbench.bench.random_grid import RANDOM_GRIDS
from flash_attention_workbench.bench.serving import SERVING
from flash_attention_workbench.bench.tangent_run import measure_tangents
from flash_attention_workbench.commands.bench import tables
from flash_attention_workbench.commands.bench.compiling import compile_all
from flash_attention_workbench.commands.bench.functions import AskedFunctions, bench_functions
from flash_attention_workbench.commands.bench.serving import bench_serving
from flash_attention_workbench.commands.bench.settings import (
    Settings,
    check_gpu,
    check_unused,
    points_of,
    read_configs,
)
from flash_attention_workbench.commands.console import (
    check_plot,
    output,
    print_lines,
    progress,
    quiet_compiles,
)
from flash_attention_workbench.commands.options import (
    GridCountOption,
    GridDHeadsOption,
    GridDTypeOption,
    GridMaskOption,
    GridSeedOption,
    GridSeqOption,
    JsonOption,
)

GridOption = Annotated[
    str,
    typer.Option(help=f"{', '.join((*NAMED_GRIDS, SERVING, FUNCTIONS))}, or a file of problems"),
]

ConfigsOption = Annotated[
    Path | None,
    typer.Option(
        help="a file of kernel configs, short forms one a line; else the set"
        " $FLASH_ATTENTION_KERNELS"
    ),
]


USUAL_PEERS = ",".join(DEFAULT_PEERS)
PeersOption = Annotated[str, typer.Option(help=f"out of {','.join(PEERS)}; or none")]
HeuristicOption = Annotated[
    bool, typer.Option("--heuristic", help="also the config that is chosen without tables")
]
HotOption = Annotated[
    bool, typer.Option("--hot/--cold", help="L2 as the run before left it, or flushed")
]
GraphOption = Annotated[
    bool, typer.Option("--graph", help="every contender replays a CUDA graph of its kernels")
]
FunctionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help=f"of the grid {FUNCTIONS}: some of its functions, as in causal,window; plans;"
        " first_calls",
    ),
]
PassesOption = Annotated[
    str | None,
    typer.Option("--pass", help=f"of the grid {FUNCTIONS}: only forward, or only backward"),
]
CompareOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A B", help="measure nothing: two --json files beside each other"),
]


def bench(
    grid: GridOption = "fa3",
    dtype: GridDTypeOption = None,
    d_head: GridDHeadsOption = None,
    causal: GridMaskOption = None,
    seq: GridSeqOption = None,
    seed: GridSeedOption = None,
    count: GridCountOption = None,
    function: FunctionOption = None,
    pass_: PassesOption = None,
    peers: PeersOption = USUAL_PEERS,
    configs: ConfigsOption = None,
    heuristic: HeuristicOption = False,
    repeats: Annotated[int, typer.Option(help="samples of each contender", min=1)] = 25,
    hot: HotOption = False,
    graph: GraphOption = False,
    fa3: Annotated[Path | None, typer.Option(help=f"FA3's library, else ${FA3_VARIABLE}")] = None,
    json: JsonOption = None,
    csv: Annotated[Path | None, typer.Option(help="write a line a point here")] = None,
    plot: Annotated[Path | None, typer.Option(help="write a PNG here")] = None,
    compare: CompareOption = None,
) -> None:
    """Time attention beside its peers, every output checked; or compare two such runs.

    Contenders take turns in one process, in another order every round; a number is the median.
    Exit code 1 when an output of ours is wrong.
    """
    if compare is not None:
        _compare(*compare)
        return
    only = {"--function": function, "--pass": pass_}
    sizes = {"--d-head": d_head, "--seq": seq}
    drawn = {"--causal/--full": causal, "--seed": seed, "--count": count}
    files = {"--configs": configs, "--csv": csv}
    others = {"--dtype": dtype, **drawn, **files, "--heuristic": heuristic or None}
    if grid == SERVING:
        check_unused(grid, {**others, **sizes, **only})
        bench_serving(peers, (repeats, hot, graph, fa3), json=json, plot=plot)
        return
    if grid == FUNCTIONS:
        check_unused(grid, {**others, "--graph": graph or None, "--fa3": fa3, "--plot": plot})
        bench_functions(
            peers, AskedFunctions.of(function, d_head, seq, pass_), (repeats, hot), json
        )
        return
    check_unused(grid, only)
    points, narrowed = points_of(grid, d_head, causal, seq, (seed, count))
    element = DType.from_string(dtype) if dtype else grid_dtype(grid)
    names = () if peers == "none" else checked_names(peers.split(","))
    extra = read_configs(configs, element, grid_measured(grid).pass_)
    settings = Settings(
        *(grid, element, points, names, configs, extra, repeats, hot, fa3, narrowed),
        *(heuristic, graph),
    )
    _check(settings)
    if csv is not None:
        check_writable(csv)
    check_plot(plot)
    _measure(settings, json=json, csv=csv, plot=plot)


def _check(settings: Settings) -> None:
    """Refuse what cannot be measured, or not here."""
    if settings.graph and settings.measured is not Measured.FORWARD:
        raise UnsupportedError(
            f"--graph is for grids of the forward pass, and {settings.grid} measures"
            f" {settings.measured.words}; leave --graph out"
        )
    check_gpu()


def _measure(settings: Settings, *, json: Path | None, csv: Path | None, plot: Path | None) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    facts: dict[str, Any] = {
        **describe(device),
        "command": settings.command(),
        "grid": settings.grid_name,
        "dtype": settings.dtype.name,
        "repeats": settings.repeats,
        "l2": "hot" if settings.hot else "cold",
        "graph": settings.graph,
        "clocks": {"before": _clocks(device)},
    }
    rows: list[GridRow] = []
    refused: list[dict[str, Any]] = []
    legend: dict[str, int] = {}
    with quiet_compiles(), closing(BesideFa3()) as beside_fa3, progress() as bar:
        compile_all(settings)
        task = bar.add_task("timing", total=len(settings.points))
        for point in settings.points:
            bar.update(task, description=f"timing {point.label}")
            result = _result(settings, point, device, beside_fa3)
            rows += result.rows
            refused += [{**asdict(point), "name": n, "why": w} for n, w in result.refused.items()]
            facts["clocks"]["after"] = _clocks(device)
            if json is not None:
                save_json(json, facts, rows, refused)
            bar.advance(task)
    if settings.grid in RANDOM_GRIDS:  # the slowest beside its peers first
        rows.sort(key=lambda row: row.ratio or math.inf)
    of_gradients = settings.measured.pass_ is Pass.BACKWARD
    output.print(tables.speeds(rows, PEER_NAMES if of_gradients else settings.peers, legend))
    print_lines(summary(rows, refused, legend))
    if settings.grid in RANDOM_GRIDS:
        print_lines([slower_than_peers(rows)])
    if of_gradients:
        print_lines(map(str, gradient_means(rows)))
    print_lines([f"{facts['device']}, L2 {facts['l2']}, {settings.repeats} samples each"])
    for when, state in facts["clocks"].items():
        print_lines([f"{when}: {Clocks(**state) if state else 'no nvidia-smi to ask'}"])
    print_lines([f"again: {settings.command()}"])
    _write(rows, json=json, csv=csv, plot=plot)
    if not rows or not all(row.ok for row in rows):
        raise typer.Exit(1)


def _result(
    settings: Settings, point: Point, device: torch.device, beside_fa3: BesideFa3
) -> PointResult:
    configs = [config for config in settings.configs if config.d_head == point.d_head]
    asked = Asked(
        *(point, settings.dtype, settings.measured, settings.repeats, device, settings.hot),
        settings.fa3,
        settings.heuristic,
        settings.graph,
    )
    measures = {Measured.FORWARD: measure_point, Measured.TANGENT: measure_tangents}
    measure = measures.get(settings.measured, measure_gradients)
    try:
        return measure(asked, configs, settings.peers, beside_fa3)
    except torch.OutOfMemoryError as error:  # the other points may have enough
        torch.cuda.empty_cache()
        return PointResult((), {OURS: f"{str(error).partition('. ')[0]} at this point"})


def _clocks(device: torch.device) -> dict[str, float | None] | None:
    clocks = read_clocks(device)
    return None if clocks is None else asdict(clocks)


def _write(
    rows: Sequence[GridRow], *, json: Path | None, csv: Path | None, plot: Path | None
) -> None:
    if csv is not None:
        save_csv(csv, rows)
    if plot is not None and any(row.ok for row in rows):
        from flash_attention_workbench.bench import plot as plots

        plots.save(plots.grid_speeds(rows), plot)
    print_lines(f"written: {path}" for path in (json, csv, plot) if path is not None)


def _compare(before: Path, after: Path) -> None:
    first, second = load_json(before), load_json(after)
    for path, facts in ((before, first.facts), (after, second.facts)):
        where = f"{facts['device']}, {facts['date']}, commit {facts['commit']}"
        print_lines([f"{path}: {where}; {facts['command']}"])
    pairs = pair_up(first, second)
    output.print(tables.point_by_point(pairs))
    output.print(tables.means(agreements(pairs)))
