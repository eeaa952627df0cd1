# SPDX-License-Identifier: Apache-2.0
"""One point of a grid: kernels and peers are timed alternately, and every output is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from flash_attention.choose.decision import Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.reference import judge as testing
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.grid import Measured, Point
from flash_attention.tools.bench.peers import line_up
from flash_attention.tools.bench.statistics import Timing, gigabytes_per_second, tflops
from flash_attention.tools.bench.timing import Contender, time_in_turn

RIVALS = ("fa3", "cudnn")  # the ratio is to the faster of them
OURS = "ours"  # the selected kernel, whichever it is
COPY, NO_WINDOW = "copy", "no window"  # contenders that are no attention, or another one
COPY_BYTES = 1 << 30  # far more than any L2 holds


@dataclass(frozen=True)
class GridRow:
    """One kernel at one point, and the milliseconds of the peers, measured alternately."""

    d: int
    causal: bool
    seq: int
    batch: int
    heads: int
    config: str
    selected: bool  # what `attention` chooses here
    ms: float
    tflops: float
    spread: float  # interquartile range, as a fraction of `ms`
    error_ratio: float  # largest error, in units of 16-bit torch's
    ok: bool
    peers: Mapping[str, float]
    ratio: float | None  # how many times as fast as the faster rival; None without one
    heads_k: int = 0
    seq_q: int = 0
    window: int = 0
    lengths: tuple[int, ...] = ()
    chunks: int = 1  # split-KV chunks of all tiles; 1 if the keys were not split
    gbps: float | None = None  # bytes of K and V over the time, where that is the traffic
    copy_gbps: float | None = None  # read and written by a plain copy, measured alternately
    full_ms: float | None = None  # of the same kernel choice without the window
    heuristic_ms: float | None = None  # of the heuristic's choice, measured alternately
    measured: str = Measured.FORWARD.name
    deterministic_ms: float | None = None  # of ours with deterministic=True
    beside: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of ours in the process of a peer, where the peer needs a process of its own. A
    deterministic peer is seen beside our deterministic mode."""

    def ours_beside(self, peer: str) -> float:
        """The milliseconds of ours that were measured alternately with a peer."""
        return self.beside.get(peer, self.ms)

    def multiple(self, peer: str) -> float:
        """How many times as fast as a peer ours is."""
        return self.peers[peer] / self.ours_beside(peer)


@dataclass(frozen=True)
class PointResult:
    """What was measured at a point, and by name why some things were not."""

    rows: tuple[GridRow, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class _Selected:
    """What `attention` runs, and in how many chunks; what it would run if there were no tables."""

    config: str = ""  # nothing: there is no kernel
    chunks: int = 0
    heuristic: KernelConfig | None = None  # None where tables are not asked


@dataclass(frozen=True)
class _Measured:
    timings: Mapping[str, Timing]
    checks: Mapping[str, testing.Check]

    def right_ms(self, name: str) -> float | None:
        """The time of a contender, None if it was not there or is wrong."""
        right = name in self.checks and self.checks[name].ok
        return self.timings[name].median_ms if right else None


def measure_point(
    point: Point,
    dtype: DType,
    configs: Sequence[KernelConfig],
    *,
    peers: Sequence[str],
    repeats: int,
    device: torch.device,
    hot: bool = False,
    fa3: Path | None = None,
    heuristic: bool = False,
) -> PointResult:
    """What `attention` runs, these configs and the peers at one point, taken in turn; with
    `heuristic` what it would run without tables too."""
    case = Case.of(point, dtype, device)
    selected, refused = _selected(case)
    ours = [case.selected(selected.config)] if selected.config else []
    untabled = selected.heuristic if heuristic else None
    wanted = dict.fromkeys((*configs, *([untabled] if untabled else [])))
    others = [config for config in wanted if config.short_form() != selected.config]
    kernels = _able([*ours, *map(case.kernel, others)], refused)
    if not kernels:
        return PointResult((), refused)
    lineup = line_up(peers, case, fa3=fa3)
    refused |= lineup.missing
    contenders = [*lineup.contenders, *kernels, *_beside(case)]
    measured = _time(case, contenders, repeats=repeats, device=device, hot=hot)
    for peer in lineup.contenders:
        if not measured.checks[peer.name].ok:
            refused[peer.name] = f"wrong: {measured.checks[peer.name]}"
    times = {
        peer.name: measured.timings[peer.name].median_ms
        for peer in lineup.contenders
        if peer.name not in refused
    }
    untabled_ms = measured.right_ms(untabled.short_form()) if untabled else None
    rows = []
    for kernel in kernels:
        chosen = kernel.name == selected.config
        chunks = selected.chunks if chosen else 0
        row = _row(point, dtype, kernel.name, chunks, measured, times)
        rows.append(replace(row, heuristic_ms=untabled_ms if chosen else None))
    return PointResult(tuple(rows), refused)


def _selected(case: Case) -> tuple[_Selected, dict[str, str]]:
    """What `attention` runs here; or nothing, and why."""
    try:
        plan = case.plan()
    except FlashAttentionError as error:
        return _Selected(), {OURS: str(error).partition("\n")[0]}
    by_table_or_heuristic = plan.rule in (Rule.TABLE, Rule.HEURISTIC)
    heuristic = select_config(plan.problem, plan.arch) if by_table_or_heuristic else None
    chunks = plan.recipe.chunks or 1
    return _Selected(plan.config.short_form(), chunks, heuristic), {}


def _able(kernels: Sequence[Contender], refused: dict[str, str]) -> list[Contender]:
    """The kernels that take the problem, each run once; `refused` learns why the others do not."""
    able = []
    for contender in kernels:
        try:
            contender.run()
        except FlashAttentionError as error:
            refused[contender.name] = str(error).partition("\n")[0]
        else:
            able.append(contender)
    return able


def _beside(case: Case) -> list[Contender]:
    """What else a point is seen beside: a copy where memory is the limit, the whole triangle."""
    if case.point.decode:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=case.q.device)
        target = torch.empty_like(source)
        return [Contender(COPY, lambda: target.copy_(source))]
    return [case.without_window().selected(NO_WINDOW)] if case.point.window else []


def _time(
    case: Case, contenders: Sequence[Contender], *, repeats: int, device: torch.device, hot: bool
) -> _Measured:
    judges = dict.fromkeys((contender.name for contender in contenders), case.judge())
    judges.pop(COPY, None)
    if NO_WINDOW in judges:
        judges[NO_WINDOW] = case.without_window().judge()
    checks: dict[str, testing.Check] = {}

    def check(name: str, out: Tensor) -> None:
        if name in judges:
            checks[name] = judges[name].check(out)

    timings = time_in_turn(contenders, device=device, repeats=repeats, check=check, hot=hot)
    return _Measured(timings, checks)


def _row(
    point: Point,
    dtype: DType,
    config: str,
    chunks: int,
    measured: _Measured,
    peers: Mapping[str, float],
) -> GridRow:
    """The row of one kernel; `chunks` is 0 where it is not the selected one."""
    timing, check, timings = measured.timings[config], measured.checks[config], measured.timings
    rivals = [peers[name] for name in RIVALS if name in peers]
    copied = 2 * COPY_BYTES
    return GridRow(
        *(point.d_head, point.causal, point.seq_len, point.batch, point.heads, config),
        selected=chunks > 0,
        ms=timing.median_ms,
        tflops=tflops(point.flop, timing.median_ms),
        spread=timing.spread,
        error_ratio=check.ratio,
        ok=check.ok,
        peers=dict(peers),
        ratio=min(rivals) / timing.median_ms if rivals else None,
        heads_k=point.heads_k,
        seq_q=point.seq_q,
        window=point.window,
        lengths=point.lengths,
        chunks=max(1, chunks),
        gbps=gigabytes_per_second(point.kv_bytes(dtype), timing.median_ms)
        if point.decode
        else None,
        copy_gbps=gigabytes_per_second(copied, timings[COPY].median_ms)
        if COPY in timings
        else None,
        full_ms=measured.right_ms(NO_WINDOW),
    )
