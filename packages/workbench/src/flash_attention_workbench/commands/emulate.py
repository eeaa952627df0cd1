# SPDX-License-Identifier: Apache-2.0
"""`flash-attention emulate`: one kernel without a GPU, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flash_attention.arch import get_arch
from flash_attention.compile import INCLUDE_DIR
from flash_attention.compile.includes import include_closure
from flash_attention.errors import LaunchError, UnsupportedError
from flash_attention.families.config import KernelConfig
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
from flash_attention_workbench.commands.emulated import CompileUnit, EmulatedKernel, EmulatedProblem
from flash_attention_workbench.commands.findings import (
    print_findings,
    print_mends,
    print_stopped,
    sources_in,
)
from flash_attention_workbench.commands.options import (
    ArchOption,
    CausalOption,
    ConfigOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    JsonOption,
)
from flash_attention_workbench.commands.planted import plant_table, print_plant
from flash_attention_workbench.inspect.instructions import ptx_mix
from flash_attention_workbench.ladder.edited import EditedRung
from flash_attention_workbench.mends import NUMBERS
from flash_attention_workbench.plants import Plant, compiler, edited_headers, find_plant
from ptx_emulator import SCHEDULES
from ptx_emulator.report.findings import Sources

LAST_SM80, SEQ_LEN = 16, 256  # a rung and rows, where neither is given


def emulate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.cu", help="the file of a rung, as it is or changed"),
    ] = None,
    rung: Annotated[
        int | None, typer.Option(help="the rung to run; 16, or the one that shows --plant")
    ] = None,
    config: ConfigOption = None,
    plant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="run with a known mistake in the headers; list: all"),
    ] = None,
    seq: Annotated[
        int | None, typer.Option(help="rows of q, k and v; 256, or as many as show --plant", min=1)
    ] = None,
    heads: HeadsOption = 2,
    batch: Annotated[int, typer.Option(help="batch entries", min=1)] = 1,
    d_head: DHeadOption = 128,
    dtype: DTypeOption = "fp16",
    schedule: Annotated[
        str, typer.Option(help=f"order of the warps: {', '.join(SCHEDULES)}")
    ] = SCHEDULES[0],
    seed: Annotated[int, typer.Option(help="of the random schedule")] = 0,
    causal: CausalOption = False,
    arch: ArchOption = None,
    json: JsonOption = None,
) -> None:
    """Run a kernel's PTX on the CPU: its error, what is wrong with it, what it does.

    FILE.cu is what `flash-attention ladder show N` printed, with your changes. A comment at its top
    names the config that it is launched as. Any other .cu file, or a .ptx file, is a kernel of your
    own, which the command `ptx-emulator` runs: see its --help. Exit code 1 when something was found
    or the output is out of tolerance.
    """
    if plant == "list":
        output.print(plant_table())
        return
    mistake = None if plant is None else find_plant(plant)
    edited = _edited(file, {"--rung": rung, "--config": config, "--plant": plant})
    if rung is None:
        rung = mistake.rung if mistake else LAST_SM80
    name, kernel_config = chosen_kernel(rung, config, dtype=dtype, d_head=d_head, heads=heads)
    if edited:
        name, kernel_config = str(file), edited.config
    target = kernel_config.default_arch.name if arch is None else arch
    kernel_config.check(get_arch(target))
    if mistake:
        _check_used(mistake, name, unit_of(kernel_config, arch=get_arch(target)).source)
    rows = seq if seq is not None else mistake.seq if mistake else SEQ_LEN
    stored = max(heads, kernel_config.row_stride // kernel_config.d_head)
    problem = EmulatedProblem(
        kernel_config, batch=batch, seq_len=rows, heads=heads, stored_heads=stored, causal=causal
    )
    order = {"schedule": schedule, "seed": seed}
    found = _run(name, kernel_config, problem, target, edited or mistake, order)
    if json is not None:
        write_record(json, {"arch": target, "plant": plant, **order, **found})
    if not found["ok"]:
        raise typer.Exit(1)


def _run(
    name: str,
    config: KernelConfig,
    problem: EmulatedProblem,
    arch: str,
    change: EditedRung | Plant | None,
    order: Mapping[str, Any],
) -> dict[str, Any]:
    """Run a kernel, as it is, edited or with a planted mistake. Print and return what became of
    it."""
    with quiet_compiles(), TemporaryDirectory() as folder:
        include = INCLUDE_DIR
        compile_unit: CompileUnit | None = None
        if isinstance(change, EditedRung):
            include, compile_unit = Path(), change.compile
        elif change:
            include = edited_headers(change.edits, Path(folder))
            compile_unit = compiler(include)
            print_plant(change, include)
        try:
            kernel = problem.run(config, arch, compile_unit=compile_unit, **order)
        except LaunchError as error:
            print_stopped(error)
            return {"ok": False, "stopped": str(error)}
        _print(name, kernel, arch, order["schedule"])
        sources = sources_in(include)
        print_findings(kernel.findings, sources)
    if change and not kernel.check.ok and not kernel.findings:
        print_mends([NUMBERS])
    if change is None or (isinstance(change, EditedRung) and kernel.ok):
        _print_counters(kernel, sources)
    return kernel.to_dict()


def _edited(file: Path | None, others: Mapping[str, object]) -> EditedRung | None:
    """The file of a rung, which no option that chooses a kernel goes with."""
    if file is None:
        return None
    if given := [name for name, value in others.items() if value is not None]:
        raise UnsupportedError(
            f"{file} is a kernel by itself, and {' and '.join(given)} would choose another; leave"
            f" {'it' if len(given) == 1 else 'them'} out"
        )
    return EditedRung.read(file)


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


def _print_counters(kernel: EmulatedKernel, sources: Sources) -> None:
    counts = kernel.counters.to_dict()
    output.print(_totals(kernel, counts))
    output.print(_classes(kernel))
    print_sites(kernel.counters, sources)


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
