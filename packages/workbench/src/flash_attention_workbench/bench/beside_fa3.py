# SPDX-License-Identifier: Apache-2.0
"""A point in the process of FlashAttention-3, whose CUDA runtime may not share one with cuDNN.

Ours is measured in both processes, and a row says how long it took beside each peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.peers.fa3 import FA3, fa3_path
from flash_attention_workbench.bench.statistics import Timing
from flash_attention_workbench.child import Child, ChildLostError, Note

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
    graph: bool = False  # contenders replay CUDA graphs


@dataclass(frozen=True)
class MeasuredPoint:
    """Times and checks of one process, by the names of the contenders."""

    config: str  # what a call runs; nothing if there is no kernel
    timings: Mapping[str, Timing]
    checks: Mapping[str, Mapping[str, Check]]  # of each result of a contender
    refused: Mapping[str, str]
    heuristic: str = ""  # what a call would run without tables, if that was asked for
    num_splits: int = 1  # KV splits of all tiles

    def of(self, name: str) -> list[Check]:
        """The checks of a contender's results."""
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

    def measure(self, how: Callable[[Asked], MeasuredPoint], asked: Asked) -> MeasuredPoint:
        """Measure a point there by a function of a module. What fails is refused."""
        try:
            fa3_path(asked.fa3)  # without a library there is no need for a process
            found: MeasuredPoint = self._child.call(_measure_in_child, how, asked)
        except (UnsupportedError, ChildLostError) as error:
            return replace(NOTHING, refused={FA3: str(error).partition("\n")[0]})
        return found

    def close(self) -> None:
        """End the process."""
        self._child.kill()


def _measure_in_child(
    note: Note, how: Callable[[Asked], MeasuredPoint], asked: Asked
) -> MeasuredPoint:
    return how(replace(asked, heuristic=False))


def right_peers(
    names: Collection[str], processes: Sequence[MeasuredPoint]
) -> tuple[dict[str, float], dict[str, str]]:
    """The milliseconds of the peers whose results are right, and why there are no others."""
    times: dict[str, float] = {}
    refused: dict[str, str] = {}
    for measured in processes:
        refused |= measured.refused
        for name in measured.timings:
            if name not in names:
                continue
            ms = measured.right_ms(name)
            if ms is None:
                refused[name] = f"wrong: {max(measured.of(name), key=_how_wrong)}"
            else:
                times[name] = ms
    return times, refused


def _how_wrong(check: Check) -> float:
    return check.error / check.allowed if check.error == check.error else math.inf
