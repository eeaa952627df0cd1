# SPDX-License-Identifier: Apache-2.0
"""One point of a grid of gradients: contenders are timed alternately, and gradients are checked.

FlashAttention-3 needs a process without cuDNN. Ours is measured in both processes, and a row says
how long it took beside each peer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flash_attention.call.backward_call import Gradients
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import FlashAttentionError, UnsupportedError
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.reference.judge import Check
from flash_attention.tools.bench.gradient_case import GradientCase
from flash_attention.tools.bench.grid import Measured, Point
from flash_attention.tools.bench.grid_run import OURS, RIVALS, GridRow, PointResult
from flash_attention.tools.bench.peers.fa3 import fa3_path
from flash_attention.tools.bench.peers.gradients import (
    FA3,
    FA3_DETERMINISTIC,
    PEER_NAMES,
    line_up_gradients,
)
from flash_attention.tools.bench.statistics import Timing, tflops
from flash_attention.tools.bench.timing import AUTOGRAD_SPINS, SPIN_CYCLES, Contender, time_in_turn
from flash_attention.tools.child import Child, ChildLostError, Note

DETERMINISTIC = "ours deterministic"
PATIENCE_S = 300.0  # with a point: kernels may have to be compiled


@dataclass(frozen=True)
class Asked:
    """A point, and how it is measured."""

    point: Point
    dtype: DType
    measured: Measured
    repeats: int
    device: torch.device
    hot: bool = False
    fa3: Path | None = None
    heuristic: bool = False  # what is chosen without tables is timed too


@dataclass(frozen=True)
class MeasuredPoint:
    """Times and checks of one process, by the names of the contenders."""

    config: str  # what a training call runs
    timings: Mapping[str, Timing]
    checks: Mapping[str, Mapping[str, Check]]
    refused: Mapping[str, str]
    heuristic: str = ""  # what it would run without tables, if that was asked for

    def of(self, name: str) -> list[Check]:
        """The checks of a contender's gradients."""
        return list(self.checks.get(name, {}).values())

    def right_ms(self, name: str) -> float | None:
        """The time of a contender; None if it was not there or is wrong."""
        right = name in self.checks and all(check.ok for check in self.of(name))
        return self.timings[name].median_ms if right else None


NOTHING = MeasuredPoint("", {}, {}, {})


class BesideFa3:
    """The process that FlashAttention-3 runs in, beside ours."""

    def __init__(self) -> None:
        self._child = Child(PATIENCE_S)

    def measure(self, asked: Asked) -> MeasuredPoint:
        """Measure a point there. What fails is refused."""
        try:
            fa3_path(asked.fa3)  # without a library there is no need for a process
            found: MeasuredPoint = self._child.call(_measure_in_child, asked)
        except (UnsupportedError, ChildLostError) as error:
            return replace(NOTHING, refused={FA3: str(error).partition("\n")[0]})
        return found

    def close(self) -> None:
        """End the process."""
        self._child.kill()


def _measure_in_child(note: Note, asked: Asked) -> MeasuredPoint:
    return measure_process(replace(asked, heuristic=False), [], (FA3, FA3_DETERMINISTIC))


def measure_process(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str]
) -> MeasuredPoint:
    """Measure ours, these configs and peers that may share a process."""
    of = GradientCase.of(asked.point, asked.dtype, asked.measured, asked.device)
    plan = of.plan()
    untabled = [select_config(plan.problem, plan.arch)] if asked.heuristic else []
    refused: dict[str, str] = {}
    kernels: list[Contender] = []
    for name, config, deterministic in (
        (OURS, None, False),
        (DETERMINISTIC, None, True),
        *((config.short_form(), config, False) for config in dict.fromkeys((*configs, *untabled))),
    ):
        try:
            contender = of.kernel(config) if config else of.ours(name, deterministic=deterministic)
            contender.run()
        except FlashAttentionError as error:
            refused[name] = str(error).partition("\n")[0]
        else:
            kernels.append(contender)
    lineup = line_up_gradients(peers, of, asked.fa3)
    judge = of.judge()
    checks: dict[str, Mapping[str, Check]] = {}

    def check(name: str, gradients: Gradients) -> None:
        checks[name] = judge.check(gradients)

    timings = time_in_turn(
        [*lineup.contenders, *kernels],
        device=asked.device,
        repeats=asked.repeats,
        check=check,
        hot=asked.hot,
        spin_cycles=AUTOGRAD_SPINS * SPIN_CYCLES,
    )
    heuristic = untabled[0].short_form() if untabled else ""
    said = {**refused, **lineup.missing}
    return MeasuredPoint(plan.config.short_form(), timings, checks, said, heuristic)


def measure_gradients(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str], beside_fa3: BesideFa3
) -> PointResult:
    """What a training call runs, these configs and the peers at one point."""
    here = measure_process(asked, configs, [name for name in peers if name != FA3])
    there = beside_fa3.measure(asked) if FA3 in peers else NOTHING
    refused = {**there.refused, **here.refused}
    times: dict[str, float] = {}
    for measured in (here, there):
        for name in measured.timings:
            if name not in PEER_NAMES:
                continue
            ms = measured.right_ms(name)
            if ms is None:
                refused[name] = f"wrong: {max(measured.checks[name].values(), key=_how_wrong)}"
            else:
                times[name] = ms
    rows = []
    if OURS in here.timings:
        pairs = ((FA3, OURS), (FA3_DETERMINISTIC, DETERMINISTIC))
        beside = {
            peer: ms
            for peer, ours in pairs
            if peer in times and (ms := there.right_ms(ours)) is not None
        }
        checks = [c for m in (here, there) for n in (OURS, DETERMINISTIC) for c in m.of(n)]
        row = _row(asked, here.config, here.timings[OURS], checks, times, beside)
        rows.append(
            replace(
                row,
                selected=True,
                deterministic_ms=here.right_ms(DETERMINISTIC),
                heuristic_ms=here.right_ms(here.heuristic),
            )
        )
    near = {name: ms for name, ms in times.items() if name in here.timings}
    for name in (config.short_form() for config in configs):
        if name in here.timings:
            rows.append(_row(asked, name, here.timings[name], here.of(name), near, {}))
    return PointResult(tuple(rows), refused)


def _how_wrong(check: Check) -> float:
    return check.error / check.allowed if check.error == check.error else math.inf


def _row(
    asked: Asked,
    config: str,
    timing: Timing,
    checks: Sequence[Check],
    peers: Mapping[str, float],
    beside: Mapping[str, float],
) -> GridRow:
    point = asked.point
    ms = timing.median_ms
    ratios = [peers[name] / beside.get(name, ms) for name in RIVALS if name in peers]
    return GridRow(
        *(point.d_head, point.causal, point.seq_len, point.batch, point.heads, config),
        selected=False,
        ms=ms,
        tflops=tflops(round(asked.measured.value * point.flop), ms),
        spread=timing.spread,
        error_ratio=max(check.ratio for check in checks),
        ok=all(check.ok for check in checks),
        peers=dict(peers),
        ratio=min(ratios) if ratios else None,
        heads_k=point.heads_k,
        lengths=point.lengths,
        measured=asked.measured.name,
        beside=dict(beside),
    )
