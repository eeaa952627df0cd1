# SPDX-License-Identifier: Apache-2.0
"""`flash-attention bench --grid serving`: the calls of a serving engine beside vLLM's FA3."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer
from rich.table import Table

from flash_attention.errors import UnsupportedError, quoted
from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention.warm_up import kernels_for
from flash_attention_workbench.bench.clocks import read_clocks
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.bench.peers import DEFAULT_PEERS
from flash_attention_workbench.bench.peers.fa3 import FA3, FA3_VARIABLE
from flash_attention_workbench.bench.serving import SERVING, Step, serving_steps
from flash_attention_workbench.bench.serving_run import (
    OURS,
    PACKED,
    How,
    ServingRow,
    call_of,
    host_times,
    measure_step,
    summary,
)
from flash_attention_workbench.commands.bench.settings import check_gpu
from flash_attention_workbench.commands.console import (
    add_number_columns,
    check_plot,
    output,
    print_lines,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.precompile import precompile_units
from flash_attention_workbench.cores import usable_cores


def bench_serving(
    peers: str,
    timing: tuple[int, bool, bool, Path | None],
    *,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Measure every step of the grid, and what a call costs on the host.

    `timing` is repeats, hot, graph and FA3's library.
    """
    if peers not in (",".join(DEFAULT_PEERS), FA3, "none"):
        raise UnsupportedError(f"--peers is {quoted(peers)}; {SERVING} has {FA3}, or none")
    check_gpu()
    check_plot(plot)
    repeats, hot, graph, fa3 = timing
    device = torch.device("cuda", torch.cuda.current_device())
    how = How(device, repeats, hot, graph, () if peers == "none" else (FA3,), fa3)
    _measure(serving_steps(), how, json=json, plot=plot)


def _measure(steps: Sequence[Step], how: How, *, json: Path | None, plot: Path | None) -> None:
    facts: dict[str, Any] = {
        **describe(how.device),
        "command": command_of(how),
        "grid": SERVING,
        "repeats": how.repeats,
        "l2": "hot" if how.hot else "cold",
        "graph": how.graph,
        "clocks": {"before": _clocks(how.device)},
    }
    rows: list[ServingRow] = []
    host: dict[str, dict[str, float]] = {}

    def save() -> None:
        facts["clocks"]["after"] = _clocks(how.device)
        if json is not None:
            write_record(json, {**facts, "rows": [asdict(row) for row in rows], "host_us": host})

    with quiet_compiles(), torch.no_grad(), progress() as bar:
        compile_steps(steps)
        task = bar.add_task("timing", total=len(steps))
        for step in steps:
            bar.update(task, description=f"timing {step.label}")
            rows.append(measure_step(step, how))
            torch.cuda.empty_cache()
            save()
            bar.advance(task)
        host |= host_times(how)
        save()
    output.print(table_of(rows))
    print_lines([*summary(rows), *host_lines(host), f"{facts['device']}, L2 {facts['l2']}"])
    print_lines([f"again: {facts['command']}"])
    beside = [row for row in rows if row.ratio is not None]
    if plot is not None and beside:
        from flash_attention_workbench.bench import plot as plots
        from flash_attention_workbench.bench.serving_plot import serving_speeds

        plots.save(serving_speeds(beside, facts["device"]), plot)
    written = (json, plot if beside else None)
    print_lines(f"written: {path}" for path in written if path is not None)
    if not all(row.ok for row in rows):
        raise typer.Exit(1)


def compile_steps(steps: Sequence[Step]) -> None:
    """Fill the compile cache on all cores; what fails says so again when it is run."""
    calls = [
        call_of(Step("", (1,), (1,), layer), torch.device("cpu"))._replace(batch_invariant=alone)
        for layer in dict.fromkeys(step.layer for step in steps)
        for alone in (False, True)
    ]
    units = dict.fromkeys(unit for call in calls for unit in kernels_for(call, current_arch().name))
    for _ in precompile_units(list(units), usable_cores()):
        pass


def command_of(how: How) -> str:
    """The command that repeats a run, whatever the defaults are then."""
    words = ["flash-attention", "bench", "--grid", SERVING]
    words += ["--peers", ",".join(how.peers) or "none", "--repeats", str(how.repeats)]
    words += ["--hot" if how.hot else "--cold", *(["--graph"] if how.graph else [])]
    library = how.fa3 or os.environ.get(FA3_VARIABLE)
    if library and how.peers:
        words += ["--fa3", Path(library).name]
    return shlex.join(words)


def table_of(rows: Sequence[ServingRow]) -> Table:
    """A line a step: microseconds of every contender, and how many times as fast ours is."""
    table = report_table("call")
    table.add_column("layer")
    contenders = (*OURS, FA3)
    times = [f"{name}, us" for name in contenders]
    add_number_columns(table, (*times, "as fast", "TB/s", "error"))
    for row in rows:
        times = [f"{row.us[name]:.1f}" if name in row.us else "" for name in contenders]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        speed = "" if row.gbps is None else f"{row.gbps / 1e3:.2f}"
        error = f"{row.error_ratio.get(PACKED, float('nan')):.2f}"
        table.add_row(row.label, row.layer, *times, ratio, speed, error)
    return table


def host_lines(host: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What a call costs on the host, a line a contender."""
    return [
        f"host, {name}: {of['new']:.0f} us with new shapes, {of['known']:.0f} us with known ones"
        for name, of in host.items()
    ]


def _clocks(device: torch.device) -> dict[str, float | None] | None:
    clocks = read_clocks(device)
    return None if clocks is None else asdict(clocks)
