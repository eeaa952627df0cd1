# SPDX-License-Identifier: Apache-2.0
"""One point of a grid of tangents: kernels, the forward pass and torch are timed alternately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flash_attention.call.tangent_call import WithTangent
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.beside_fa3 import Asked, BesideFa3
from flash_attention_workbench.bench.grid_run import GridRow, PointResult
from flash_attention_workbench.bench.peers.lineup import Lineup, first_lines
from flash_attention_workbench.bench.statistics import Timing, tflops
from flash_attention_workbench.bench.tangent_case import TangentCase
from flash_attention_workbench.bench.timing import Contender, time_in_turn

FORWARD = "forward"  # the same call without tangents
TORCH = "sdpa_math"


def measure_tangents(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str], beside_fa3: BesideFa3
) -> PointResult:
    """What a call in forward mode runs, these configs, the forward pass and torch at one point."""
    of = TangentCase.of(asked.point, asked.dtype, asked.device)
    plan = of.plan()
    untabled = [select_config(plan.problem, plan.choice.setting.arch)] if asked.heuristic else []
    kernels = {c.short_form(): c for c in (plan.config, *configs, *untabled)}
    ways = {name: partial(of.contender, config=config) for name, config in kernels.items()}
    lineup = _line_up(ways | ({TORCH: of.by_torch} if TORCH in peers else {}))
    judge = of.judge()
    checks: dict[str, Sequence[Check]] = {}

    def check(name: str, found: object) -> None:
        if isinstance(found, WithTangent):
            checks[name] = list(judge.check(found).values())

    timings = time_in_turn(
        [of.case.selected(FORWARD), *lineup.contenders],
        device=asked.device,
        repeats=asked.repeats,
        check=check,
        hot=asked.hot,
    )
    chosen, heuristic = plan.config.short_form(), untabled[0].short_form() if untabled else ""
    heuristic_ms = timings[heuristic].median_ms if heuristic in checks else None
    rows = [
        replace(
            _row(asked, name, timings, checks[name]),
            selected=name == chosen,
            heuristic_ms=heuristic_ms if name == chosen else None,
        )
        for name in kernels
        if name in checks
    ]
    others = {name: f"tangents are compared with {TORCH}" for name in peers if name != TORCH}
    return PointResult(tuple(rows), others | dict(lineup.missing))


def _line_up(ways: Mapping[str, Callable[[str], Contender]]) -> Lineup:
    """The contenders that take the problem, each run once, and why the others do not."""
    present, missing = [], {}
    for name, make in ways.items():
        try:
            contender = make(name)
            contender.run()
        except (FlashAttentionError, RuntimeError) as error:
            missing[name] = first_lines(error)
        else:
            present.append(contender)
    return Lineup(tuple(present), missing)


def _row(
    asked: Asked,
    config: str,
    timings: Mapping[str, Timing],
    checks: Sequence[Check],
) -> GridRow:
    point, timing = asked.point, timings[config]
    ms = timing.median_ms
    return GridRow(
        *(point.d_head, point.causal, point.seq_len, point.batch, point.heads, config),
        selected=False,
        ms=ms,
        tflops=tflops(round(asked.measured.value * point.flop), ms),
        spread=timing.spread,
        error_ratio=max(check.ratio for check in checks),
        ok=all(check.ok for check in checks),
        peers={TORCH: timings[TORCH].median_ms} if TORCH in timings else {},
        ratio=None,
        heads_k=point.heads_k,
        measured=asked.measured.name,
        forward_ms=timings[FORWARD].median_ms,
    )
