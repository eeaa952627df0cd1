# SPDX-License-Identifier: Apache-2.0
"""`flash-attention report`."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.families.backward_steps import parse_step_name
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting, Step
from flash_attention.files import write_whole
from flash_attention.ladder import Rung, get_ladder
from flash_attention_workbench.bench.grid import SEED_HEADS, SEED_SHAPES
from flash_attention_workbench.bench.stored import read_folder
from flash_attention_workbench.commands.console import output
from flash_attention_workbench.commands.ladder.diff import source_diff
from flash_attention_workbench.commands.ladder.listing import change_of
from flash_attention_workbench.explain.gpus import GPUS
from flash_attention_workbench.report import LaunchText, RungText, render_page

HERE = Path("results")  # of the working folder
SHIPPED = Path(__file__).parents[1] / "report" / "results"
"""The results that come with the package, which are those of the checkout."""
GPU, SEQ_LEN = GPUS[0], 4096
"""Where launches of rungs are told for, and the rows of a sequence."""


def report(
    results: Annotated[
        Path | None,
        typer.Option(
            help="the folder of results files; ./results if left out, and where there is none the"
            " results that come with the package"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
    tuner: Annotated[
        Path | None, typer.Option(help="a tuner's store, if it is not in that folder")
    ] = None,
) -> None:
    """One HTML page of everything that was measured: it needs no network and no other file."""
    folder = results or (HERE if HERE.is_dir() else SHIPPED)
    stored = read_folder(folder, *([tuner] if tuner else []))
    page = render_page(stored, rung_texts(), rung_texts(Pass.BACKWARD))
    write_whole(out, page.text)
    output.print(f"results: {folder}", markup=False, highlight=False, soft_wrap=True)
    for sentence in page.missing:
        output.print(f"left out: {sentence}", markup=False, highlight=False)
    size = len(page.text.encode()) / 1024
    output.print(f"report: {out} ({size:.0f} KiB)", markup=False, highlight=False)


def rung_texts(pass_: Pass = Pass.FORWARD) -> tuple[RungText, ...]:
    """The ideas, changes, launches and source of a ladder."""
    rungs = get_ladder(pass_=pass_)
    return tuple(
        RungText(
            rung.number,
            rung.name,
            rung.idea,
            change_of(before, rung),
            source_diff(before, rung) if before else "",
            rung.config.default_arch.name,
            *launches_of(rung, pass_),
        )
        for before, rung in zip((None, *rungs), rungs, strict=False)
    )


def launches_of(rung: Rung, pass_: Pass) -> tuple[tuple[LaunchText, ...], str]:
    """What a rung launches at a shape of the ladder, and that in words."""
    config = rung.config
    kind = DenseBackwardProblem if pass_ is Pass.BACKWARD else DenseProblem
    sizes = (SEQ_LEN, SEQ_LEN, SEED_SHAPES[SEQ_LEN], SEED_HEADS, SEED_HEADS)
    problem = kind(config.dtype, config.d_head, config.d_head, rung.causal, *sizes)
    steps = problem.recipe(config, Setting(config.default_arch, GPU.num_sms)).steps
    counted = Counter((_kernel(step), step.geometry) for step in steps)
    launches = tuple(
        LaunchText(name, times, prod(at.grid), at.block, at.smem_bytes)
        for (name, at), times in counted.items()
    )
    return launches, f"{problem}, on {GPU.num_sms} multiprocessors"


def _kernel(step: Step) -> str:
    """What a kernel does in its pass."""
    beside = parse_step_name(step.unit.name)
    return beside.kernel.replace("_", " ") if beside else "main"
