# SPDX-License-Identifier: Apache-2.0
"""The ladder without a GPU: every rung run by the emulator, held to the oracle, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from flash_attention.arch import Arch
from flash_attention.ladder import Rung
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.emulated import EmulatedKernel, EmulatedProblem

SEQ_LEN, MAX_HEADS = 256, 2
PLOT_SUFFIX = "-emulated"


def run_emulated(
    rungs: Sequence[Rung],
    arch: Arch | None,
    *,
    stored_heads: int,
    causal: bool,
    plot: Path | None,
) -> list[EmulatedKernel]:
    """Emulates every rung as it was compiled, on the first heads of tensors of `stored_heads`."""
    heads = min(stored_heads, MAX_HEADS)
    problem = EmulatedProblem(
        rungs[0].config,
        batch=1,
        seq_len=SEQ_LEN,
        heads=heads,
        stored_heads=stored_heads,
        causal=causal,
    )
    kernels: list[EmulatedKernel] = []
    with quiet_compiles(), progress() as bar:
        task = bar.add_task("emulating", total=len(rungs))
        for rung in rungs:
            bar.update(task, description=f"emulating {rung.number} {rung.name}")
            kernels.append(problem.run(rung.config, arch.name if arch else None))
            bar.advance(task)
    where = f" on {arch.name}" if arch else ""
    mask = ", causal" if causal else ""
    title = f"Emulated{where}: batch 1, {SEQ_LEN} rows, {heads} heads{mask}"
    output.print(_table(rungs, kernels, title))
    wrong = [rung for rung, kernel in zip(rungs, kernels, strict=True) if not kernel.ok]
    if plot is not None:
        _save_plot(rungs, kernels, plot.with_stem(plot.stem + PLOT_SUFFIX))
    if wrong:
        for rung, kernel in zip(rungs, kernels, strict=True):
            for finding in kernel.findings:
                output.print(f"rung {rung.number}: {finding}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    what = "output" if kernels[0].judged == "output" else "gradient"
    output.print(f"Every {what} was within tolerance of the float64 oracle, and nothing was found.")
    return kernels


def _table(rungs: Sequence[Rung], kernels: Sequence[EmulatedKernel], title: str) -> Table:
    table = report_table("rung", title=title)
    columns = (
        "error",
        "of allowed",
        "findings",
        "bank conflicts",
        "wavefronts / needed",
        "sectors / request",
        "instructions / key block",
        "seconds",
    )
    add_number_columns(table, columns)
    for rung, kernel in zip(rungs, kernels, strict=True):
        check, findings = kernel.check, len(kernel.findings)
        table.add_row(
            escape(f"{rung.number:2} {rung.name}"),
            f"{check.error:.1e}",
            _coloured(f"{100 * check.error / check.allowed:.0f}%", bad=not check.ok),
            _coloured(str(findings or "none"), bad=findings > 0),
            f"{kernel.counters.conflicts:,}",
            f"{kernel.conflict_ways:.2f}",
            f"{kernel.sectors_per_request:.2f}",
            f"{kernel.instructions_per_key_block:,.0f}",
            f"{kernel.seconds:.2f}",
        )
    return table


def _coloured(text: str, *, bad: bool) -> str:
    return f"[bold red]{text}[/]" if bad else text


def _save_plot(rungs: Sequence[Rung], kernels: Sequence[EmulatedKernel], path: Path) -> None:
    from matplotlib.figure import Figure

    from flash_attention_workbench.bench import plot as plots

    figure = Figure(figsize=(10, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    places = range(len(rungs))
    upper.bar(places, [k.instructions_per_key_block for k in kernels], color="#3b6fb6")
    upper.set_ylabel("warp instructions\na tile and key block")
    lower.bar(places, [k.conflict_ways for k in kernels], color="#b6553b")
    lower.set_ylabel("shared-memory wavefronts\nfor each one needed")
    labels = [f"{rung.number} {rung.name}" for rung in rungs]
    lower.set_xticks(places, labels, rotation=40, ha="right", fontsize=8)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)
    output.print(f"plot: {path}", markup=False, highlight=False)
