# SPDX-License-Identifier: Apache-2.0
"""A machine whose true times are known: noise, a clock of its own, and kernels that go wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, Wanted
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem, DenseTangentProblem
from flash_attention.choose.table import Entry
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.kernel_configs import (
    DType,
    HopperForwardKernelConfig,
    HopperTangentKernelConfig,
    KernelConfig,
    TileOrder,
)
from flash_attention_workbench.tune.measurer import Compiled, Failure
from flash_attention_workbench.tune.store import Machine

SM90 = ARCHES["sm_90"]
MACHINE = Machine("NVIDIA H200", "580.1 (CUDA 13.0)", "13.0", SM90)
COMPILE_S, HANG_S = 0.05, 30.0

TrueTime = Callable[[KernelConfig], float]


def dense(
    seq: int = 4096, causal: bool = False, d_head: int = 128, dtype: DType = DType.BF16
) -> DenseProblem:
    return DenseProblem(
        *(dtype, d_head, d_head, causal, seq, seq, max(16384 // seq, 1), 16, 16),
    )


def dense_backward(
    seq: int = 4096,
    causal: bool = False,
    d_head: int = 128,
    *,
    wanted: Wanted = ALL,
    deterministic: bool = False,
) -> DenseBackwardProblem:
    shared = dense(seq, causal, d_head)
    sizes = {f.name: getattr(shared, f.name) for f in fields(shared)}
    return DenseBackwardProblem(**sizes, wanted=wanted, deterministic=deterministic)


def dense_tangent(seq: int = 4096, causal: bool = False, d_head: int = 128) -> DenseTangentProblem:
    shared = dense(seq, causal, d_head)
    return DenseTangentProblem(**{f.name: getattr(shared, f.name) for f in fields(shared)})


def true_tangent_time(config: KernelConfig) -> float:
    """Milliseconds; best are 48 keys in 3 stages, by CTAs that take every n-th tile."""
    assert isinstance(config, HopperTangentKernelConfig)
    off = abs(config.B_c - 48) / 16 * 0.05 + abs(config.stages - 3) * 0.03
    return 1.0 + off + 0.03 * (config.tile_order is not TileOrder.PERSISTENT)


def true_backward_time(config: KernelConfig) -> float:
    """Milliseconds; best are kernels that store dS, in groups of 16 heads."""
    assert isinstance(config, HopperBackwardKernelConfig)
    stored = config.query_gradient is QueryGradient.WORKSPACE
    return 1.0 + 0.1 * (not stored) + 0.03 * (config.group_heads != 16)


def true_time(config: KernelConfig) -> float:
    """Milliseconds; best are 144 keys in 2 stages, consumers without turns, queries prefetched."""
    assert isinstance(config, HopperForwardKernelConfig)
    off = abs(config.B_c - 144) / 16 * 0.02 + abs(config.stages - 2) * 0.03
    return 1.0 + off + 0.03 * config.ping_pong - 0.02 * config.prefetch_q


class MadeUpMeasurer:
    """Answers at once and says on its clock how long it took."""

    def __init__(
        self,
        true: TrueTime = true_time,
        *,
        noise: float = 0.01,
        spills: Mapping[KernelConfig, int] | None = None,
        fates: Mapping[KernelConfig, Failure] | None = None,
        interrupt_after: int | None = None,
    ) -> None:
        self.now = 0.0
        self.timed: Counter[tuple[DenseProblem, KernelConfig, int]] = Counter()
        self.lineups: list[tuple[int, list[KernelConfig], bool]] = []
        self.compiled_configs: list[KernelConfig] = []
        self.kernels: set[tuple[KernelConfig, bool]] = set()
        self._true = true
        self._noise = noise
        self._spills = spills or {}
        self._fates = fates or {}
        self._interrupt_after = interrupt_after
        self._draw = random.Random(1)

    def compile(self, problem: DenseProblem, configs: Sequence[KernelConfig]) -> None:
        pass

    def compiled(
        self, problem: DenseProblem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled | Failure]]:
        for config in configs:
            self.now += COMPILE_S
            self.compiled_configs.append(config)
            self.kernels.add((config, problem.causal))
            yield config, Compiled(168, self._spills.get(config, 0))

    def time(
        self, problem: DenseProblem, configs: Sequence[KernelConfig], *, repeats: int, check: bool
    ) -> Mapping[KernelConfig, float | Failure]:
        if self._interrupt_after is not None and len(self.lineups) >= self._interrupt_after:
            raise KeyboardInterrupt
        self.lineups.append((repeats, list(configs), check))
        answers: dict[KernelConfig, float | Failure] = {}
        for config in configs:
            self.timed[problem, config, repeats] += 1
            fate = self._fates.get(config)
            if fate is not None and (fate.fate != "wrong" or check):
                self.now += HANG_S if fate.fate == "hung" else 1.0
                answers[config] = fate
                continue
            true = self._true(config)
            self.now += repeats * (2 * true + 0.3) / 1000
            sigma = self._noise / repeats**0.5
            answers[config] = true * (1 + self._draw.gauss(0, sigma))
        return answers

    def seconds(self) -> float:
        return self.now

    def close(self) -> None:
        pass


def entry(
    problem: DenseProblem,
    config: KernelConfig,
    ms: float = 1.0,
    heuristic: KernelConfig | None = None,
    when: str = "2026-11-15T00:00:00+00:00",
) -> Entry:
    return Entry(
        problem=problem,
        config=config,
        ms=ms,
        heuristic=(heuristic or config).short_form(),
        heuristic_ms=1.1 * ms,
        when=when,
        driver=MACHINE.driver,
        nvrtc=MACHINE.nvrtc,
        version="0.1.0",
    )
