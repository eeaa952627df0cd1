# SPDX-License-Identifier: Apache-2.0
"""`flash-attention simulate`: the schedules of distributed attention beside each other."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from flash_attention.distributed.cost.estimates import simulate as simulate_schedules
from flash_attention.distributed.cost.machine import Link, h200
from flash_attention.distributed.cost.simulator import Estimate
from flash_attention.files import write_record
from flash_attention_workbench.commands.console import add_number_columns, output, report_table

COLUMNS = ("mesh", "ms", "computing", "communicating", "waiting", "hidden", "GB sent")


def simulate(
    *,
    length: int,
    gpus: int,
    heads: int,
    heads_k: int | None,
    d: int,
    batch: int,
    causal: bool,
    window: int | None,
    backward: bool,
    node: int,
    bandwidth: float,
    latency: float,
    far_bandwidth: float,
    far_latency: float,
    json: Path | None,
) -> None:
    """How long each schedule of distributed attention takes, what it moves and what it hides."""
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
    table = report_table("schedule", title=f"{gpus} x {machine.name}, {length:,} rows, {pass_}")
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
