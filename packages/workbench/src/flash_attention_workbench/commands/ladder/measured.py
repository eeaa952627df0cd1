# SPDX-License-Identifier: Apache-2.0
"""The ladder on a GPU: every rung checked against the oracle and timed beside FA2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from rich.table import Table

from flash_attention.call.features import CAUSAL, PLAIN
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import KernelConfig
from flash_attention.ladder import Rung
from flash_attention.launch.device import current_arch
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.bench import results
from flash_attention_workbench.bench.comparison import Comparison, compare
from flash_attention_workbench.bench.ladder_run import Candidate, measure, under_masks
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.ladder.listing import change_of


def run_measured(
    rungs: Sequence[Rung],
    extra: Sequence[KernelConfig],
    *,
    shapes: Sequence[tuple[int, int]],
    n_heads: int,
    pass_: Pass,
    causal: bool,
    repeats: int,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Times every rung and every `extra` config at every shape, and prints them beside FA2."""
    masks = under_masks(candidates_of(rungs, extra), causal)
    kernels = [(candidate, mask) for mask, some in masks.items() for candidate in some]
    device = torch.device("cuda", torch.cuda.current_device())
    rows: list[results.Row] = []
    with quiet_compiles(), progress() as bar:
        compiling = bar.add_task("compiling", total=len(kernels))
        for candidate, mask in kernels:
            compile_config(candidate.config, current_arch(), CAUSAL if mask else PLAIN)
            bar.advance(compiling)
        checking = bar.add_task("checking", total=len(shapes) * (len(kernels) + len(masks)))
        timing = bar.add_task("timing", total=len(shapes) * len(masks))
        for mask, shape in product(masks, shapes):
            bar.update(timing, description=f"timing {shape[0]} x {shape[1]}")
            rows += measure(
                masks[mask],
                shape,
                n_heads=n_heads,
                pass_=pass_,
                causal=mask,
                repeats=repeats,
                device=device,
                on_checked=lambda name: bar.advance(checking),
            )
            bar.advance(timing)
    config = kernels[0][0].config
    measured = results.collect(
        rows,
        device=device,
        dtype=config.dtype.name,
        d_head=config.d_head,
        n_heads=n_heads,
        causal=causal,
        pass_=pass_.value,
    )
    comparison = compare(measured)
    output.print(_table(comparison, title=f"{measured.device}: TFLOP/s (of FA2)"))
    what = "gradient" if pass_ is Pass.BACKWARD else "output"
    output.print(f"Every timed {what} was within tolerance of the float64 oracle.")
    _write(measured, comparison, json=json, plot=plot)


def candidates_of(rungs: Sequence[Rung], extra: Sequence[KernelConfig]) -> list[Candidate]:
    """The rungs, then the extra configs under their short forms."""
    ladder = [
        Candidate(rung.name, rung.number, change_of(before, rung), rung.config, rung.causal)
        for before, rung in zip((None, *rungs), rungs, strict=False)
    ]
    return ladder + [Candidate(config.short_form(), None, "", config) for config in extra]


def _table(comparison: Comparison, *, title: str) -> Table:
    table = report_table("rung", title=title)
    table.add_column("changes")
    shapes = [f"{batch} x {seq_len}" for batch, seq_len in comparison.shapes]
    add_number_columns(table, (*shapes, "harmonic mean"))
    for entry in comparison.entries:
        speeds = zip(
            (*entry.tflops, entry.mean_tflops), (*entry.of_fa2, entry.mean_of_fa2), strict=True
        )
        table.add_row(
            entry.title,
            entry.change,
            *(f"{tflops:.0f} ({100 * fraction:.0f}%)" for tflops, fraction in speeds),
        )
    return table


def _write(
    measured: results.Results, comparison: Comparison, *, json: Path | None, plot: Path | None
) -> None:
    if json is not None:
        results.save(measured, json)
        output.print(f"results: {json}", markup=False, highlight=False)
    if plot is not None:
        from flash_attention_workbench.bench import plot as plots

        plots.save(plots.speeds(comparison, measured.setting), plot)
        output.print(f"plot: {plot}", markup=False, highlight=False)
