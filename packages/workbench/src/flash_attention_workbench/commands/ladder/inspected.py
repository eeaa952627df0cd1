# SPDX-License-Identifier: Apache-2.0
"""The ladder without a GPU: resources, occupancy and instruction mix of every rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from flash_attention.arch import Arch
from flash_attention.compile import nvrtc_version
from flash_attention.ladder import Rung
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.ladder.inspection import RungInspection, inspect_rung


def run_inspected(
    rungs: Sequence[Rung], arch: Arch | None, *, causal: bool, plot: Path | None
) -> list[RungInspection]:
    """Compiles every rung, for `arch` or its own, and prints what compiler and machine code say."""
    inspections = []
    with quiet_compiles(), progress() as bar:
        task = bar.add_task("compiling", total=len(rungs))
        for rung in rungs:
            bar.update(task, description=f"compiling {rung.number} {rung.name}")
            target = arch or rung.config.default_arch
            inspections.append(inspect_rung(rung, target, causal))
            bar.advance(task)
    output.print(_resource_table(inspections))
    output.print(_mix_table(inspections))
    if plot is not None:
        from flash_attention_workbench.bench import plot as plots

        mixes = {_label(i.rung): i.instructions.mix for i in inspections}
        language = inspections[0].instructions.language
        arches = ", ".join(dict.fromkeys(i.arch.name for i in inspections))
        plots.save(plots.instruction_mix(mixes, language=language, arch=arches), plot)
        output.print(f"plot: {plot}", markup=False, highlight=False)
    return inspections


def _resource_table(inspections: Sequence[RungInspection]) -> Table:
    table = report_table("rung", title=f"Resources, NVRTC {nvrtc_version()}")
    table.add_column("for", no_wrap=True)
    add_number_columns(table, ("registers", "spilled bytes", "shared KiB", "CTAs per SM"))
    table.add_column("limited by", min_width=len("registers"))
    table.add_column("machine code", no_wrap=True)
    for before, inspection in zip((None, *inspections), inspections, strict=False):
        table.add_row(
            _label(inspection.rung),
            inspection.arch.name,
            str(inspection.registers),
            str(inspection.spills),
            f"{inspection.rung.config.smem_bytes() / 1024:.0f}",
            str(inspection.ctas_per_sm),
            inspection.limited_by,
            _code(before, inspection),
        )
    return table


def _code(before: RungInspection | None, inspection: RungInspection) -> str:
    if before is not None and before.machine_code == inspection.machine_code:
        return f"same as rung {before.rung.number}"
    return f"{len(inspection.machine_code)} bytes"


def _mix_table(inspections: Sequence[RungInspection]) -> Table:
    language = inspections[0].instructions.language
    table = report_table("rung", title=f"{language} instructions in the kernel, by class")
    classes = [
        name
        for name in dict.fromkeys(c for i in inspections for c in i.instructions.mix)
        if any(inspection.instructions.mix.get(name) for inspection in inspections)
    ]
    add_number_columns(table, ("all", *classes))
    for inspection in inspections:
        mix = inspection.instructions.mix
        counts = [mix.get(name, 0) for name in classes]
        table.add_row(_label(inspection.rung), *(str(n) for n in (sum(counts), *counts)))
    return table


def _label(rung: Rung) -> str:
    return f"{rung.number:2} {rung.name}"
