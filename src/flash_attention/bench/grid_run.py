# SPDX-License-Identifier: Apache-2.0
"""One point of a grid: kernels and peers timed in turn, every output held to the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flash_attention import testing
from flash_attention.api import forward
from flash_attention.bench.grid import Point
from flash_attention.bench.peers import Lineup, line_up
from flash_attention.bench.statistics import Timing, tflops
from flash_attention.bench.timing import Contender, time_in_turn
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.part_judge import PartJudge

RIVALS = ("fa3", "cudnn")  # the ratio is to the faster of them


@dataclass(frozen=True)
class GridRow:
    """One kernel at one point, and the milliseconds of the peers in the same turns."""

    d: int
    causal: bool
    seq: int
    batch: int
    heads: int
    config: str
    selected: bool  # what `select_config` chooses here
    ms: float
    tflops: float
    spread: float  # interquartile range, as a fraction of `ms`
    error_ratio: float  # largest error, in units of 16-bit torch's
    ok: bool
    peers: Mapping[str, float]
    ratio: float | None  # how many times as fast as the faster rival; None without one


@dataclass(frozen=True)
class PointResult:
    """What was measured at a point, and by name why some things were not."""

    rows: tuple[GridRow, ...]
    refused: Mapping[str, str]


def measure_point(
    point: Point,
    selected: KernelConfig,
    others: Sequence[KernelConfig],
    *,
    peers: Sequence[str],
    repeats: int,
    device: torch.device,
    fa3: Path | None = None,
) -> PointResult:
    """The selected kernel, the others and the peers at one point, taken in turn."""
    q, k, v, o = testing.generate_qkvo(*point.shape, selected.dtype, device)
    judge = PartJudge(q, k, v, causal=point.causal)
    lineup = line_up(peers, q, k, v, causal=point.causal, fa3=fa3)
    refused = dict(lineup.missing)
    kernels: dict[str, Contender] = {}
    for config in dict.fromkeys((selected, *others)):
        contender = _kernel(config, point.causal, q, k, v, o)
        try:
            contender.run()
        except FlashAttentionError as error:
            refused[contender.name] = str(error).partition("\n")[0]
        else:
            kernels[contender.name] = contender
    checks: dict[str, testing.Check] = {}

    def check(name: str, out: Tensor) -> None:
        checks[name] = judge.check(out)

    contenders = (*lineup.contenders, *kernels.values())
    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check)
    for name in _wrong(lineup, checks):
        refused[name] = f"wrong: {checks[name]}"
    times = {c.name: timings[c.name].median_ms for c in lineup.contenders if c.name not in refused}
    return PointResult(
        tuple(
            _row(point, name, name == selected.short_form(), timings[name], checks[name], times)
            for name in kernels
        ),
        refused,
    )


def _kernel(
    config: KernelConfig, causal: bool, q: Tensor, k: Tensor, v: Tensor, o: Tensor
) -> Contender:
    return Contender(
        config.short_form(),
        run=lambda: forward(config, q, k, v, o, causal=causal),
        poison=lambda: o.fill_(torch.nan),
    )


def _wrong(lineup: Lineup, checks: Mapping[str, testing.Check]) -> list[str]:
    return [peer.name for peer in lineup.contenders if not checks[peer.name].ok]


def _row(
    point: Point,
    config: str,
    selected: bool,
    timing: Timing,
    check: testing.Check,
    peers: Mapping[str, float],
) -> GridRow:
    rivals = [peers[name] for name in RIVALS if name in peers]
    return GridRow(
        d=point.d_head,
        causal=point.causal,
        seq=point.seq_len,
        batch=point.batch,
        heads=point.heads,
        config=config,
        selected=selected,
        ms=timing.median_ms,
        tflops=tflops(point.flop, timing.median_ms),
        spread=timing.spread,
        error_ratio=check.ratio,
        ok=check.ok,
        peers=dict(peers),
        ratio=min(rivals) / timing.median_ms if rivals else None,
    )
