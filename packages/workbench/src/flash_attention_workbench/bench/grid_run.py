# SPDX-License-Identifier: Apache-2.0
"""One point of a grid: kernels and peers are timed alternately, and every output is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flash_attention.choose.choice import Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import FlashAttentionError, UnsupportedError, quoted
from flash_attention.kernel_configs import KernelConfig
from flash_attention.records import Count, Positive, Size
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.beside_fa3 import (
    NOTHING,
    Asked,
    BesideFa3,
    MeasuredPoint,
    right_peers,
)
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.peers import PEERS, line_up
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.statistics import Timing, gigabytes_per_second, tflops
from flash_attention_workbench.bench.timing import Contender, captured, time_in_turn

RIVALS = (FA3, "cudnn")  # the ratio is to the faster of them
OURS = "ours"  # the selected kernel, whichever it is
COPY, NO_WINDOW = "copy", "no window"  # contenders that are no attention, or another one
COPY_BYTES = 1 << 30  # far more than any L2 holds


@dataclass(frozen=True)
class GridRow:
    """One kernel at one point, and the milliseconds of the peers, measured alternately."""

    d: Size
    causal: bool
    seq: Size
    batch: Size
    heads: Size
    config: str
    selected: bool  # what `attention` chooses here
    ms: Positive
    tflops: Positive
    spread: float  # interquartile range, as a fraction of `ms`
    error_ratio: float  # largest error, in units of 16-bit torch's
    ok: bool
    peers: Mapping[str, Positive]
    ratio: Positive | None  # how many times as fast as the faster rival; None without one
    heads_k: Count = 0
    seq_q: Count = 0
    window: Count = 0
    lengths: tuple[Size, ...] = ()
    num_splits: int = 1  # KV splits of all tiles; 1 if the keys were not split
    gbps: Positive | None = None  # bytes of K and V over the time, where that is the traffic
    copy_gbps: Positive | None = None  # read and written by a plain copy, measured alternately
    full_ms: Positive | None = None  # of the same kernel choice without the window
    heuristic_ms: Positive | None = None  # of the heuristic's choice, measured alternately
    measured: str = Measured.FORWARD.name
    deterministic_ms: Positive | None = None  # of ours with deterministic=True
    forward_ms: Positive | None = None  # of the same call without tangents, measured alternately
    beside: Mapping[str, Positive] = field(default_factory=dict)
    """Milliseconds of ours in the process of a peer, where the peer needs a process of its own. A
    deterministic peer is seen beside our deterministic mode."""

    def __post_init__(self) -> None:
        if self.measured not in Measured.__members__:
            known = ", ".join(Measured.__members__)
            raise UnsupportedError(f"measured is {quoted(self.measured)}; there are {known}")
        if self.seq_q > self.seq:
            raise UnsupportedError(f"seq_q {self.seq_q} is more than seq {self.seq}")

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


def measure_point(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str], beside_fa3: BesideFa3
) -> PointResult:
    """What `attention` runs, these configs and the peers at one point."""
    here = measure_process(asked, configs, [name for name in peers if name != FA3])
    if not here.timings:
        return PointResult((), here.refused)
    there = beside_fa3.measure(measure_beside_fa3, asked) if FA3 in peers else NOTHING
    times, refused = right_peers(PEERS, (there, here))
    near = {name: ms for name, ms in times.items() if name in here.timings}
    rows = []
    for name in dict.fromkeys((here.config, *map(_name, configs), here.heuristic)):
        if name not in here.timings:
            continue
        if name != here.config:
            rows.append(_row(asked, here, name, near))
            continue
        ours = there.right_ms(name)
        beside = {} if FA3 not in times or ours is None else {FA3: ours}
        row = _row(asked, here, name, times, beside, there.of(name))
        untabled_ms = here.right_ms(here.heuristic)
        rows.append(
            replace(row, selected=True, num_splits=here.num_splits, heuristic_ms=untabled_ms)
        )
    return PointResult(tuple(rows), refused)


def measure_beside_fa3(asked: Asked) -> MeasuredPoint:
    """Measure ours and FlashAttention-3, which need a process without cuDNN."""
    return measure_process(asked, [], (FA3,))


def measure_process(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str]
) -> MeasuredPoint:
    """Measure ours, these configs and peers that may share a process, taken in turn."""
    case = Case.of(asked.point, asked.dtype, asked.device)
    selected, refused = _selected(case)
    untabled = [selected.heuristic] if asked.heuristic and selected.heuristic else []
    ours = [case.selected(selected.config)] if selected.config else []
    wanted = dict.fromkeys((*configs, *untabled))
    others = [config for config in wanted if _name(config) != selected.config]
    kernels = _able([*ours, *map(case.kernel, others)], refused)
    if not kernels:
        return replace(NOTHING, refused=refused)
    lineup = line_up(peers, case, fa3=asked.fa3)
    timings, checks = _time(case, [*lineup.contenders, *kernels, *_beside(case)], asked)
    return MeasuredPoint(
        *(selected.config, timings, checks, refused | dict(lineup.missing)),
        heuristic=_name(untabled[0]) if untabled else "",
        num_splits=selected.num_splits,
    )


@dataclass(frozen=True)
class _Selected:
    """What `attention` runs, and in how many splits; what it would run if there were no tables."""

    config: str = ""  # nothing: there is no kernel
    num_splits: int = 1
    heuristic: KernelConfig | None = None  # None where tables are not asked


def _selected(case: Case) -> tuple[_Selected, dict[str, str]]:
    """What `attention` runs here; or nothing, and why."""
    try:
        plan = case.plan()
    except FlashAttentionError as error:
        return _Selected(), {OURS: str(error).partition("\n")[0]}
    by_table_or_heuristic = plan.choice.rule in (Rule.TABLE, Rule.HEURISTIC)
    heuristic = (
        select_config(plan.problem, plan.choice.setting.arch) if by_table_or_heuristic else None
    )
    return _Selected(_name(plan.config), plan.recipe.num_splits or 1, heuristic), {}


def _name(config: KernelConfig) -> str:
    return config.short_form()


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
    case: Case, contenders: Sequence[Contender], asked: Asked
) -> tuple[dict[str, Timing], dict[str, dict[str, Check]]]:
    judges = dict.fromkeys((contender.name for contender in contenders), case.judge())
    judges.pop(COPY, None)
    if NO_WINDOW in judges:
        judges[NO_WINDOW] = case.without_window().judge()
    checks: dict[str, dict[str, Check]] = {}

    def check(name: str, out: Tensor) -> None:
        if name in judges:
            checks[name] = {"out": judges[name].check(out)}

    if asked.graph:
        contenders = [captured(contender) for contender in contenders]
    timings = time_in_turn(
        contenders, device=asked.device, repeats=asked.repeats, check=check, hot=asked.hot
    )
    return timings, checks


def _row(
    asked: Asked,
    measured: MeasuredPoint,
    config: str,
    peers: Mapping[str, float],
    beside: Mapping[str, float] | None = None,
    checks_there: Sequence[Check] = (),
) -> GridRow:
    """The row of one kernel. `beside` and `checks_there` are those of FA3's process."""
    point, timing, timings = asked.point, measured.timings[config], measured.timings
    ms, beside = timing.median_ms, beside or {}
    checks = [*measured.of(config), *checks_there]
    ratios = [peers[name] / beside.get(name, ms) for name in RIVALS if name in peers]
    copied = 2 * COPY_BYTES
    return GridRow(
        *(point.d_head, point.causal, point.seq_len, point.batch, point.heads, config),
        selected=False,
        ms=ms,
        tflops=tflops(point.flop, ms),
        spread=timing.spread,
        error_ratio=max(check.ratio for check in checks),
        ok=all(check.ok for check in checks),
        peers=dict(peers),
        ratio=min(ratios) if ratios else None,
        heads_k=point.heads_k,
        seq_q=point.seq_q,
        window=point.window,
        lengths=point.lengths,
        gbps=gigabytes_per_second(point.kv_bytes(asked.dtype), ms) if point.decode else None,
        copy_gbps=gigabytes_per_second(copied, timings[COPY].median_ms)
        if COPY in timings
        else None,
        full_ms=measured.right_ms(NO_WINDOW),
        beside=dict(beside),
    )
