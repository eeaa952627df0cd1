# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder run`: measured on a GPU, inspected and emulated without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from flash_attention.arch import Arch, get_arch
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.registry import check_pass
from flash_attention.kernel_configs import (
    KernelConfig,
    as_kernel_config,
)
from flash_attention.ladder import Rung
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.ladder_run import GRIDS
from flash_attention_workbench.commands.console import check_plot, output
from flash_attention_workbench.commands.ladder.emulated import run_emulated
from flash_attention_workbench.commands.ladder.inspected import run_inspected
from flash_attention_workbench.commands.ladder.measured import run_measured
from flash_attention_workbench.commands.ladder.stored import store
from flash_attention_workbench.commands.options import (
    CausalOption,
    DHeadOption,
    DTypeOption,
    HeadsOption,
    JsonOption,
    PassOption,
    ladder_of,
    needs,
    pass_named,
)


def run(
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
    grid: Annotated[str, typer.Option(help=f"shapes to time: {' or '.join(GRIDS)}")] = "quick",
    causal: CausalOption = False,
    repeats: Annotated[int, typer.Option(help="samples of each contender and shape", min=1)] = 30,
    config: Annotated[
        list[str] | None, typer.Option(help="also time this config, in its short form")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="inspect and emulate for this one, even with a GPU")
    ] = None,
    json: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="write a PNG here")] = None,
) -> None:
    """Climb the ladder: every rung checked and timed, or, without a GPU, inspected and emulated."""
    rungs = ladder_of(dtype, d_head, heads, pass_)
    if grid not in GRIDS:
        raise UnsupportedError(f"unknown grid {grid!r}; choose from {', '.join(GRIDS)}")
    check_plot(plot)
    extra = [_extra_config(text, rungs[0].config, pass_named(pass_)) for text in config or ()]
    if arch is None and torch.cuda.is_available():
        run_measured(
            _able(rungs, current_arch()),
            extra,
            shapes=GRIDS[grid],
            n_heads=heads,
            pass_=pass_named(pass_),
            causal=causal,
            repeats=repeats,
            json=json,
            plot=plot,
        )
        return
    if extra:
        raise UnsupportedError("--config is for measurements, which need a GPU")
    target = get_arch(arch) if arch else None
    if arch is None:
        output.print("No GPU here: the rungs are compiled, inspected and emulated.")
    able = _able(rungs, target)
    inspections = run_inspected(able, target, causal=causal, plot=plot)
    kernels = run_emulated(able, target, stored_heads=heads, causal=causal, plot=plot)
    if json is not None:
        store(inspections, kernels, json)


def _able(rungs: Sequence[Rung], arch: Arch | None) -> list[Rung]:
    """The rungs that run on `arch`, or on one of their own; the others are printed with why."""
    able = []
    for rung in rungs:
        if rung.config.broken_rule(arch or rung.config.default_arch):
            why = f"needs {needs(rung.config)}"
            output.print(f"rung {rung.number} {rung.name} {why}", highlight=False, markup=False)
        else:
            able.append(rung)
    if arch and not able:
        raise UnsupportedError(f"no rung of this ladder runs on {arch.name}")
    return able


def _extra_config(text: str, rung: KernelConfig, pass_: Pass) -> KernelConfig:
    config = as_kernel_config(text, dtype=rung.dtype, d_head=rung.d_head, pass_=pass_)
    check_pass(config, pass_)
    config.check(current_arch(config.default_arch))
    if (config.dtype, config.d_head) != (rung.dtype, rung.d_head):
        raise UnsupportedError(
            f"--config is for {config.dtype.name} and d_head {config.d_head}, the ladder runs with "
            f"{rung.dtype.name} and {rung.d_head}; choose them with --dtype and --d-head"
        )
    return config
