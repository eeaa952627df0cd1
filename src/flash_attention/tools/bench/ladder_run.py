# SPDX-License-Identifier: Apache-2.0
"""The measurement behind `flash-attention ladder run`: every rung, checked, beside FA2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from flash_attention.errors import LaunchError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference import judge as testing
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.comparison import FA2
from flash_attention.tools.bench.grid import SEED_SHAPES, Point
from flash_attention.tools.bench.peers.torch_sdpa import sdpa
from flash_attention.tools.bench.results import Row
from flash_attention.tools.bench.statistics import tflops
from flash_attention.tools.bench.timing import time_in_turn

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
    causal: bool = False  # to be measured under a causal mask


def by_mask(candidates: Sequence[Candidate], causal: bool) -> list[tuple[bool, list[Candidate]]]:
    """Who is measured together, and whether under a causal mask; `causal`: all are.

    The rung below the first causal one is measured under both, so that a step is one change.
    """
    first = next((i for i, candidate in enumerate(candidates) if candidate.causal), None)
    if causal or first is None:
        return [(causal, list(candidates))]
    masked = [candidate for candidate in candidates if candidate.causal]
    if first > 0:
        masked.insert(0, replace(candidates[first - 1], change=""))
    unmasked = [candidate for candidate in candidates if not candidate.causal]
    return [(False, unmasked), (True, masked)] if unmasked else [(True, masked)]


def checked(judge: testing.Judge, name: str, out: Tensor) -> float:
    """The largest error of an output that is within the rule; one that is not raises."""
    check = judge.check(out)
    if not check.ok:
        raise LaunchError(f"{name}: {check}; its time means nothing")
    return check.error


def measure(
    candidates: Sequence[Candidate],
    shape: tuple[int, int],
    *,
    n_heads: int,
    repeats: int,
    device: torch.device,
    causal: bool = False,
    on_checked: Callable[[str], object] = lambda name: None,
) -> list[Row]:
    """All candidates and FA2 at one (batch, seq_len), timed in turn; wrong numbers raise."""
    batch, seq_len = shape
    config = candidates[0].config
    point = Point(config.d_head, causal, seq_len, batch, n_heads)
    case = Case.of(point, config.dtype, device)
    judge = testing.Judge(case.q, case.k, case.v, causal=causal)
    contenders = [sdpa(SDPBackend.FLASH_ATTENTION, FA2, case)]
    contenders += [replace(case.kernel(c.config), name=c.name) for c in candidates]
    for contender in contenders:
        contender.poison()
        checked(judge, contender.name, contender.run())
        on_checked(contender.name)
    errors: dict[str, float] = {}

    def check(name: str, out: Tensor) -> None:
        errors[name] = checked(judge, name, out)

    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
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
                tflops=tflops(point.flop, timing.median_ms),
                max_error=errors[name],
                allowed_error=judge.allowed,
                causal=causal,
            )
        )
    return rows
