# SPDX-License-Identifier: Apache-2.0
"""`flash-attention simulate`: the schedules of distributed attention beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Annotated

import typer

from flash_attention.distributed.cost.estimates import simulate as simulate_schedules
from flash_attention.distributed.cost.machine import Link, h200
from flash_attention.distributed.cost.simulator import Estimate
from flash_attention.files import write_record
from flash_attention_workbench.commands.console import add_number_columns, output, report_table
from flash_attention_workbench.commands.options import JsonOption

COLUMNS = ("mesh", "ms", "computing", "communicating", "waiting", "hidden", "GB sent")

H200 = h200()


def simulate(
    length: Annotated[int, typer.Option(help="rows of the sequence", min=1)] = 1 << 20,
    gpus: Annotated[int, typer.Option(help="GPUs that it is divided among", min=1)] = 8,
    heads: Annotated[int, typer.Option(help="heads of q", min=1)] = 32,
    heads_k: Annotated[
        int | None, typer.Option(help="heads of k and v; as many as of q if left out", min=1)
    ] = None,
    d: Annotated[int, typer.Option("--d", help="head dimension", min=1)] = 128,
    batch: Annotated[int, typer.Option(help="sequences", min=1)] = 1,
    causal: Annotated[
        bool, typer.Option("--causal/--full", help="whether query i sees no key after it")
    ] = True,
    window: Annotated[
        int | None, typer.Option(help="keys that a query sees before its own", min=0)
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward/--forward", help="the pass to simulate")
    ] = False,
    node: Annotated[int, typer.Option(help="GPUs of a node", min=1)] = H200.node,
    bandwidth: Annotated[
        float, typer.Option(help="of a GPU within its node, GB/s each way", min=0.001)
    ] = H200.near.gb_s,
    latency: Annotated[
        float, typer.Option(help="of a message within a node, microseconds", min=0)
    ] = H200.near.latency_us,
    far_bandwidth: Annotated[
        float, typer.Option(help="of a GPU to other nodes, GB/s each way", min=0.001)
    ] = H200.far.gb_s,
    far_latency: Annotated[
        float, typer.Option(help="of a message between nodes, microseconds", min=0)
    ] = H200.far.latency_us,
    json: JsonOption = None,
) -> None:
    """How long each schedule of distributed attention takes, what it moves and what it hides.

    Kernels take the times that were measured on one H200. The links are assumptions. Nothing runs.
    """
    machine = replace(
        h200(node), near=Link(bandwidth, latency), far=Link(far_bandwidth, far_latency)
    )
    found = simulate_schedules(
        length,
        gpus,
        heads=heads,
        heads_k=heads_k,
        d=d,
        batch=batch,
        causal=causal,
        window=None if window is None else (window, 0 if causal else window),
        backward=backward,
        machine=machine,
    )
    if json is not None:
        rows = [asdict(estimate) | {"hidden": estimate.hidden} for estimate in found]
        write_record(json, {"machine": machine.name, "length": length, "gpus": gpus, "rows": rows})
    pass_ = "backward" if backward else "forward"
    _print(f"{gpus} x {machine.name}, {length:,} rows, {pass_}", found)


def _print(title: str, found: Iterable[Estimate]) -> None:
    table = report_table("schedule", title=title)
    add_number_columns(table, COLUMNS)
    for estimate in found:
        table.add_row(estimate.schedule, *_cells(estimate))
    output.print(table, highlight=False)


def _cells(estimate: Estimate) -> list[str]:
    times = (estimate.seconds, estimate.computing, estimate.communicating, estimate.exposed)
    return [
        " x ".join(map(str, estimate.mesh)),
        *(f"{1e3 * seconds:,.2f}" for seconds in times),
        f"{100 * estimate.hidden:.0f} %",
        f"{1e-9 * estimate.sent_bytes:,.2f}",
    ]
