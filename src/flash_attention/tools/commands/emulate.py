# SPDX-License-Identifier: Apache-2.0
"""`flash-attention emulate`: one kernel without a GPU, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from flash_attention.files import write_record
from flash_attention.tools.commands.console import (
    add_number_columns,
    output,
    quiet_compiles,
    report_table,
)
from flash_attention.tools.commands.emulated import EmulatedKernel, EmulatedProblem
from flash_attention.tools.commands.options import (
    chosen_kernel,
)
from flash_attention.tools.inspect.instructions import ptx_mix

PLACES_SHOWN = 8
SHARED = {"requests": "requests", "wavefronts": "wavefronts", "ideal": "needed"}
GLOBAL = {"requests": "requests", "sectors": "sectors", "ideal_sectors": "needed", "bytes": "bytes"}


def emulate(
    *,
    rung: int,
    config: str | None,
    seq: int,
    heads: int,
    batch: int,
    d_head: int,
    dtype: str,
    schedule: str,
    seed: int,
    causal: bool,
    arch: str | None,
    json: Path | None,
) -> None:
    """Run a kernel's PTX on the CPU: its error, what is wrong with it, what it does."""
    name, kernel_config = chosen_kernel(rung, config, dtype=dtype, d_head=d_head, heads=heads)
    target = arch or kernel_config.default_arch.name
    problem = EmulatedProblem(
        kernel_config, batch=batch, seq_len=seq, heads=heads, stored_heads=heads, causal=causal
    )
    with quiet_compiles():
        kernel = problem.run(kernel_config, target, schedule=schedule, seed=seed)
    if json is not None:
        settings = {"arch": target, "schedule": schedule, "seed": seed}
        write_record(json, settings | kernel.to_dict())
    _print(name, kernel, target, schedule)
    if not kernel.ok:
        raise typer.Exit(1)


def _print(name: str, kernel: EmulatedKernel, arch: str, schedule: str) -> None:
    batch, seq_len, heads, d_head = kernel.shape
    mask = ", causal" if kernel.causal else ""
    output.print(
        f"[bold]{escape(name)}[/], batch {batch}, {seq_len} rows, {heads} heads of {d_head}{mask},"
        f" {arch}, {schedule}: {kernel.emulation.seconds:.2f} s",
        highlight=False,
    )
    output.print(escape(kernel.config.short_form()), highlight=False)
    verdict = "[green]right[/]" if kernel.check.ok else "[bold red]wrong[/]"
    output.print(f"output: {verdict}, {escape(str(kernel.check))}", highlight=False)
    _print_findings(kernel)
    counts = kernel.emulation.counters.to_dict()
    output.print(_totals(kernel, counts))
    output.print(_classes(kernel))
    output.print(_hottest("shared", counts["shared"], SHARED))
    output.print(_hottest("global", counts["global"], GLOBAL))


def _print_findings(kernel: EmulatedKernel) -> None:
    findings = kernel.emulation.findings
    colour = "bold red" if findings else "green"
    output.print(f"findings: [{colour}]{len(findings) or 'none'}[/]", highlight=False)
    for finding in findings:
        output.print(f"  {finding}", markup=False, highlight=False, soft_wrap=True)


def _totals(kernel: EmulatedKernel, counts: Mapping[str, Any]) -> Table:
    table = report_table("counted over all CTAs")
    add_number_columns(table, ("",))
    for name, value in (
        ("warp instructions", f"{kernel.warp_instructions:,}"),
        ("the same, a tile and key block", f"{kernel.instructions_per_key_block:,.0f}"),
        ("tensor-core FLOP", f"{counts['tensor_operations']:,}"),
        ("waits at barriers", f"{counts['barrier_waits']:,}"),
        ("bank conflicts", f"{counts['bank_conflicts']:,}"),
        ("wavefronts for each one needed", f"{kernel.conflict_ways:.2f}"),
        ("sectors a request", f"{kernel.sectors_per_request:.2f}"),
        ("bytes loaded", f"{counts['bytes_loaded']:,}"),
        ("bytes stored", f"{counts['bytes_stored']:,}"),
    ):
        table.add_row(name, value)
    return table


def _classes(kernel: EmulatedKernel) -> Table:
    table = report_table("PTX instructions executed")
    add_number_columns(table, ("warps", "share"))
    mix = ptx_mix(kernel.emulation.counters.instructions)
    for name, count in sorted(mix.items(), key=lambda item: -item[1]):
        if count:
            table.add_row(name, f"{count:,}", f"{100 * count / kernel.warp_instructions:.1f}%")
    return table


def _hottest(where: str, sites: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> Table:
    """Sites of one opcode on one source line together; `keys` are counts and their headings."""
    table = report_table(f"hottest in {where} memory")
    table.add_column("source", overflow="fold")
    add_number_columns(table, ("places in PTX", "first line", *keys.values()))
    places: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for site in sites:
        places.setdefault((str(site["opcode"]), _source(site)), []).append(site)
    totals = {
        place: [sum(site[key] for site in group) for key in keys] for place, group in places.items()
    }
    for place in sorted(totals, key=lambda place: -totals[place][1])[:PLACES_SHOWN]:
        opcode, source = place
        lines = [site["ptx_line"] for site in places[place]]
        numbers = (f"{number:,}" for number in (len(lines), min(lines), *totals[place]))
        table.add_row(opcode, source, *numbers)
    return table


def _source(site: Mapping[str, Any]) -> str:
    """The place in the CUDA text and its caller, headers as they are included."""
    places = str(site["source"] or "").split(", called from ")
    return escape(", from ".join(_short(place) for place in places))


def _short(path: str) -> str:
    _, inside, header = path.rpartition("/include/")
    return header if inside else path.rpartition("/")[2]
