# SPDX-License-Identifier: Apache-2.0
"""`flash-attention emulate`: one kernel without a GPU, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from flash_attention.arch import get_arch
from flash_attention.compile import INCLUDE_DIR
from flash_attention.compile.includes import include_closure
from flash_attention.errors import LaunchError, UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.files import write_record
from flash_attention_workbench.commands.chosen import chosen_kernel
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.counted import print_sites
from flash_attention_workbench.commands.emulated import EmulatedKernel, EmulatedProblem
from flash_attention_workbench.commands.findings import print_findings, print_mends, print_stopped
from flash_attention_workbench.commands.planted import plant_table, print_plant
from flash_attention_workbench.inspect.instructions import ptx_mix
from flash_attention_workbench.mends import NUMBERS
from flash_attention_workbench.plants import Plant, compiler, edited_headers, find_plant

LAST_SM80, SEQ_LEN = 16, 256  # a rung and rows, where neither is given


def emulate(
    rung: int | None,
    config: str | None,
    plant: str | None,
    seq: int | None,
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
    if plant == "list":
        output.print(plant_table())
        return
    mistake = None if plant is None else find_plant(plant)
    if rung is None:
        rung = mistake.rung if mistake else LAST_SM80
    if seq is None:
        seq = mistake.seq if mistake else SEQ_LEN
    name, kernel_config = chosen_kernel(rung, config, dtype=dtype, d_head=d_head, heads=heads)
    target = kernel_config.default_arch.name if arch is None else arch
    kernel_config.check(get_arch(target))
    if mistake:
        _check_used(mistake, name, unit_of(kernel_config, arch=get_arch(target)).source)
    problem = EmulatedProblem(
        kernel_config, batch=batch, seq_len=seq, heads=heads, stored_heads=heads, causal=causal
    )
    order = {"schedule": schedule, "seed": seed}
    settings = {"arch": target, "plant": plant, **order}
    with quiet_compiles(), TemporaryDirectory() as folder:
        include, compile_unit = INCLUDE_DIR, None
        if mistake:
            include = edited_headers(mistake.edits, Path(folder))
            compile_unit = compiler(include)
            print_plant(mistake, include)
        try:
            kernel = problem.run(kernel_config, target, compile_unit=compile_unit, **order)
        except LaunchError as error:
            print_stopped(error)
            if json is not None:
                write_record(json, {**settings, "ok": False, "stopped": str(error)})
            raise typer.Exit(1) from error
        _print(name, kernel, target, schedule)
        print_findings(kernel.findings, include)
    if mistake is None:
        _print_counters(kernel)
    elif not kernel.check.ok and not kernel.findings:
        print_mends([NUMBERS])
    if json is not None:
        write_record(json, {**settings, **kernel.to_dict()})
    if not kernel.ok:
        raise typer.Exit(1)


def _check_used(mistake: Plant, kernel: str, source: str) -> None:
    """Refuse a kernel that the mistake is not in, because it does not include the header."""
    headers = include_closure(source)
    for edit in mistake.edits:
        if f"fa/{edit.header}" not in headers:
            raise UnsupportedError(
                f"{kernel} does not include fa/{edit.header}, where {mistake.name} is planted;"
                " leave --rung and --config out"
            )


def _print(name: str, kernel: EmulatedKernel, arch: str, schedule: str) -> None:
    batch, seq_len, heads, d_head = kernel.shape
    mask = ", causal" if kernel.causal else ""
    output.print(
        f"[bold]{escape(name)}[/], batch {batch}, {seq_len} rows, {heads} heads of {d_head}{mask},"
        f" {arch}, {schedule}: {kernel.seconds:.2f} s",
        highlight=False,
    )
    output.print(escape(kernel.config.short_form()), highlight=False)
    verdict = "[green]right[/]" if kernel.check.ok else "[bold red]wrong[/]"
    output.print(
        f"{kernel.judged}: {verdict}, {escape(str(kernel.check))}", highlight=False, soft_wrap=True
    )


def _print_counters(kernel: EmulatedKernel) -> None:
    counts = kernel.counters.to_dict()
    output.print(_totals(kernel, counts))
    output.print(_classes(kernel))
    print_sites(kernel.counters)


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
    mix = ptx_mix(kernel.counters.instructions)
    for name, count in sorted(mix.items(), key=lambda item: -item[1]):
        if count:
            table.add_row(name, f"{count:,}", f"{100 * count / kernel.warp_instructions:.1f}%")
    return table
