# SPDX-License-Identifier: Apache-2.0
"""The measurement behind `flash-attention ladder run`: every rung, checked, beside FA2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from flash_attention.errors import LaunchError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference.judge import Check, Judge
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.comparison import FA2
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid import SEED_SHAPES, Measured, Point
from flash_attention_workbench.bench.peers.gradients import flash_attention_2
from flash_attention_workbench.bench.peers.torch_sdpa import sdpa
from flash_attention_workbench.bench.results import Row
from flash_attention_workbench.bench.statistics import tflops
from flash_attention_workbench.bench.timing import (
    AUTOGRAD_SPINS,
    SPIN_CYCLES,
    Contender,
    time_in_turn,
)

GRIDS: dict[str, tuple[tuple[int, int], ...]] = {
    "seed": tuple((batch, seq_len) for seq_len, batch in SEED_SHAPES.items()),
    "quick": ((4, 2048),),
}
"""(batch, seq_len) shapes to measure at."""


@dataclass(frozen=True)
class Candidate:
    """A kernel to measure, and how a table names it; `number` is None off the ladder."""

    name: str
    number: int | None
    change: str
    config: KernelConfig
    causal: bool = False  # to be measured under a causal mask alone


def under_masks(candidates: Sequence[Candidate], causal: bool) -> dict[bool, list[Candidate]]:
    """The candidates by the mask they are measured under: all under a causal one if that is asked
    for; else those for causal masks are, after the one below the first of them."""
    if causal:
        return {True: list(candidates)}
    plain = [candidate for candidate in candidates if not candidate.causal]
    masked = [
        candidate
        for candidate, above in zip(candidates, (*candidates[1:], None), strict=True)
        if candidate.causal or (above is not None and above.causal)
    ]
    return {mask: some for mask, some in ((False, plain), (True, masked)) if some}


def checked(name: str, checks: Mapping[str, Check]) -> Check:
    """Of the results of a contender, the check nearest to its limit; one beyond it raises."""
    for result, check in checks.items():
        if not check.ok:
            raise LaunchError(f"{name}, {result}: {check}; its time means nothing")
    return nearest_to_limit(checks)[1]


def nearest_to_limit(checks: Mapping[str, Check]) -> tuple[str, Check]:
    """The result that is wrong, or has the largest part of its allowed error."""
    return max(checks.items(), key=lambda one: (not one[1].ok, one[1].error / one[1].allowed))


@dataclass(frozen=True)
class Contest:
    """The contenders at one point, what they compute, and the check of every result by name."""

    contenders: list[Contender]
    flop: int
    judge: Callable[[Any], Mapping[str, Check]]

    @classmethod
    def of(
        cls, point: Point, candidates: Sequence[Candidate], pass_: Pass, device: torch.device
    ) -> Contest:
        """FA2 first, then the candidates."""
        dtype = candidates[0].config.dtype
        if pass_ is Pass.BACKWARD:
            of = GradientCase.of(point, dtype, Measured.BACKWARD, device)
            kernels = [replace(of.kernel(c.config), name=c.name) for c in candidates]
            flop = round(Measured.BACKWARD.value * point.flop)
            return cls([flash_attention_2(FA2, of), *kernels], flop, of.judge().check)
        case = Case.of(point, dtype, device)
        kernels = [replace(case.kernel(c.config), name=c.name) for c in candidates]
        outputs = Judge(case.q, case.k, case.v, causal=point.causal)
        fa2 = sdpa(SDPBackend.FLASH_ATTENTION, FA2, case)
        return cls([fa2, *kernels], point.flop, lambda out: {"output": outputs.check(out)})


def measure(
    candidates: Sequence[Candidate],
    shape: tuple[int, int],
    *,
    n_heads: int,
    repeats: int,
    device: torch.device,
    causal: bool = False,
    pass_: Pass = Pass.FORWARD,
    on_checked: Callable[[str], object] = lambda name: None,
) -> list[Row]:
    """All candidates and FA2 at one (batch, seq_len), timed in turn; wrong numbers raise."""
    batch, seq_len = shape
    point = Point(candidates[0].config.d_head, causal, seq_len, batch, n_heads)
    contest = Contest.of(point, candidates, pass_, device)
    for contender in contest.contenders:
        contender.poison()
        checked(contender.name, contest.judge(contender.run()))
        on_checked(contender.name)
    checks: dict[str, Check] = {}

    def check(name: str, output: Any) -> None:
        checks[name] = checked(name, contest.judge(output))

    timings = time_in_turn(
        contest.contenders,
        device=device,
        repeats=repeats,
        check=check,
        spin_cycles=SPIN_CYCLES * (AUTOGRAD_SPINS if pass_ is Pass.BACKWARD else 1),
    )
    described = {candidate.name: candidate for candidate in candidates}
    rows = []
    for name, timing in timings.items():
        candidate = described.get(name)
        rows.append(
            Row(
                contender=name,
                number=candidate.number if candidate else None,
                change=candidate.change if candidate else "",
                config=candidate.config.short_form() if candidate else None,
                batch=batch,
                seq_len=seq_len,
                median_ms=timing.median_ms,
                low_ms=timing.low_ms,
                high_ms=timing.high_ms,
                samples=timing.samples,
                tflops=tflops(contest.flop, timing.median_ms),
                max_error=checks[name].error,
                allowed_error=checks[name].allowed,
                causal=causal,
            )
        )
    return rows
