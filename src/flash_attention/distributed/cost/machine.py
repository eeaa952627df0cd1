# SPDX-License-Identifier: Apache-2.0
"""Machine: how fast GPUs compute, by measured times of one, and how fast they exchange data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURED = Path(__file__).parent / "h200.json"
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """What one GPU sends and receives at the same time, each at `gb_s`. A message takes
    `latency_us` to begin; every further one of the same exchange takes `gap_us` more."""

    gb_s: float
    latency_us: float
    gap_us: float = 1.0

    def seconds(self, sent: Numbers | float, messages: int = 1) -> Any:
        """The time of an exchange in which a GPU sends and receives some bytes."""
        start = self.latency_us + self.gap_us * (messages - 1)
        return np.where(np.asarray(sent) > 0, start * 1e-6 + np.asarray(sent) / self.gb_s * 1e-9, 0)


@dataclass(frozen=True)
class Machine:
    """Equal GPUs in nodes of `node`, with links within a node and links between nodes.

    `rates` has the measured speed of attention on one GPU, [length, TFLOP/s], by pass, head
    dimension and mask.
    """

    name: str
    near: Link
    far: Link
    node: int
    copy_tb_s: float
    rates: Mapping[str, Mapping[str, Mapping[str, Sequence[Sequence[float]]]]]

    def compute_seconds(
        self, pass_: str, d: int, causal: bool, flop: Numbers, length: Numbers
    ) -> Numbers:
        """The time of attention over sequences of some length on one GPU. Lengths between those
        that were measured are interpolated, longer ones are as fast as the longest."""
        by_d = self.rates[pass_]
        nearest = min(by_d, key=lambda measured: abs(math.log(int(measured) / d)))
        lengths, speeds = np.transpose(by_d[nearest]["causal" if causal else "full"])
        speed = np.interp(np.log2(np.maximum(length, 1)), np.log2(lengths), speeds)
        return np.asarray(flop / speed * 1e-12)

    def link(self, one: NDArray[np.int64], other: NDArray[np.int64], sent: Numbers) -> Numbers:
        """The time in which each GPU of `one` gets bytes from that of `other`."""
        near, far = (link.seconds(sent) for link in (self.near, self.far))
        return np.asarray(np.where(one // self.node == other // self.node, near, far))

    def exchange_seconds(self, ranks: int, sent: float) -> float:
        """The time in which each of some neighbouring GPUs sends equal parts to all others."""
        if ranks == 1:
            return 0.0
        inside = min(ranks, self.node) - 1
        outside = ranks - 1 - inside
        part = sent / (ranks - 1)
        times = (
            self.near.seconds(part * inside, inside),
            self.far.seconds(part * outside, outside),
        )
        return float(max(times))


@cache
def h200(node: int = 8) -> Machine:
    """NVIDIA H200: measured kernels, NVLink within a node, a 400 Gbit/s adapter per GPU beyond.

    NVLink 4 moves 450 GB/s each way; 360 are assumed to be reached, and 45 of the 50 GB/s of an
    adapter. The links were not measured.
    """
    record = json.loads(MEASURED.read_text())
    return Machine(
        name=record["device"],
        near=Link(360.0, 8.0),
        far=Link(45.0, 20.0),
        node=node,
        copy_tb_s=record["copy_tb_s"],
        rates=record["tflops"],
    )
