# SPDX-License-Identifier: Apache-2.0
"""One point of a grid of gradients: contenders are timed alternately, and gradients are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flash_attention.call.backward_call import Gradients
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.beside_fa3 import (
    NOTHING,
    Asked,
    BesideFa3,
    MeasuredPoint,
    right_peers,
)
from flash_attention_workbench.bench.gradient_case import GradientCase
from flash_attention_workbench.bench.grid_run import OURS, RIVALS, GridRow, PointResult
from flash_attention_workbench.bench.peers.fa3 import FA3
from flash_attention_workbench.bench.peers.gradients import (
    FA3_DETERMINISTIC,
    PEER_NAMES,
    line_up_gradients,
)
from flash_attention_workbench.bench.statistics import Timing, tflops
from flash_attention_workbench.bench.timing import (
    AUTOGRAD_SPINS,
    SPIN_CYCLES,
    Contender,
    time_in_turn,
)

DETERMINISTIC = "ours deterministic"


def measure_beside_fa3(asked: Asked) -> MeasuredPoint:
    """Measure ours and FlashAttention-3, which need a process without cuDNN."""
    return measure_process(asked, [], (FA3, FA3_DETERMINISTIC))


def measure_process(
    asked: Asked, configs: Sequence[KernelConfig], peers: Sequence[str]
) -> MeasuredPoint:
    """Measure ours, these configs and peers that may share a process."""
    of = GradientCase.of(asked.point, asked.dtype, asked.measured, asked.device)
    plan = of.plan()
    untabled = [select_config(plan.problem, plan.choice.setting.arch)] if asked.heuristic else []
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
    there = beside_fa3.measure(measure_beside_fa3, asked) if FA3 in peers else NOTHING
    times, refused = right_peers(PEER_NAMES, (there, here))
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
        window=point.window,
        lengths=point.lengths,
        measured=asked.measured.name,
        beside=dict(beside),
    )
