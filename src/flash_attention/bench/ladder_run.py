# SPDX-License-Identifier: Apache-2.0
"""The measurement behind `flash-attention ladder run`: every rung, checked, beside FA2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from flash_attention import testing
from flash_attention.api import forward
from flash_attention.bench.comparison import FA2
from flash_attention.bench.peers import sdpa
from flash_attention.bench.results import Row
from flash_attention.bench.statistics import tflops
from flash_attention.bench.timing import Contender, time_in_turn
from flash_attention.errors import LaunchError
from flash_attention.kernel_configs import KernelConfig

GRIDS: dict[str, tuple[tuple[int, int], ...]] = {
    "seed": ((16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384)),
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
    q, k, v, o = testing.generate_qkvo(batch, seq_len, n_heads, config.d_head, config.dtype, device)
    judge = testing.Judge(q, k, v, causal=causal)
    contenders = [sdpa(SDPBackend.FLASH_ATTENTION, FA2, q, k, v, causal)]
    contenders += [_contender(candidate, causal, q, k, v, o) for candidate in candidates]
    for contender in contenders:
        contender.poison()
        checked(judge, contender.name, contender.run())
        on_checked(contender.name)
    errors: dict[str, float] = {}

    def check(name: str, out: Tensor) -> None:
        errors[name] = checked(judge, name, out)

    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
    described = {candidate.name: candidate for candidate in candidates}
    flop = config.attn_flop(batch, n_heads, seq_len) // (2 if causal else 1)
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
                tflops=tflops(flop, timing.median_ms),
                max_error=errors[name],
                allowed_error=judge.allowed,
            )
        )
    return rows


def _contender(
    candidate: Candidate, causal: bool, q: Tensor, k: Tensor, v: Tensor, o: Tensor
) -> Contender:
    return Contender(
        candidate.name,
        run=lambda: forward(candidate.config, q, k, v, o, causal=causal),
        poison=lambda: o.fill_(torch.nan),
    )
