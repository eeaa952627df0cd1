# SPDX-License-Identifier: Apache-2.0
"""Clusters: CTAs that see each other's shared memory.

A cluster is emulated as one CTA of all its warps: warp w of the CTA of rank r is warp r * n + w of
n warps a CTA. So their clocks, and what is known of their shared memory, are those of one CTA. What
belongs to a single CTA, its named barriers and its part of shared memory, is told apart by rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.errors import EmulatorError
from ptx_emulator.machine.lanes import Lanes

Ints = NDArray[np.int64]
Shape = tuple[int, int, int]

WINDOW = 1 << 24  # bytes of addresses for the shared memory of every CTA of a cluster
SHARED_END = 17 * WINDOW  # a window for the own CTA, and one for each of up to 16
LARGEST = 16  # CTAs


@dataclass(frozen=True)
class Clusters:
    """How the CTAs of a grid are dealt to clusters of `shape`."""

    grid: Shape
    shape: Shape
    threads: int  # of a CTA

    def __post_init__(self) -> None:
        if self.size == 1:
            return
        if any(g % c for g, c in zip(self.grid, self.shape, strict=True)):
            raise EmulatorError(f"a grid of {self.grid} CTAs is not cut into clusters {self.shape}")
        if self.size > LARGEST:
            raise EmulatorError(f"{self.size} CTAs in a cluster; a GPU takes up to {LARGEST}")
        if self.threads % 32:
            raise EmulatorError(f"clusters with {self.threads} threads a CTA are not emulated")

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def count(self) -> int:
        return prod(self.grid) // self.size

    @property
    def warps_in_cta(self) -> int:
        return -(-self.threads // 32)

    @property
    def in_grid(self) -> Shape:
        """How many clusters there are in x, y and z."""
        x, y, z = (g // c for g, c in zip(self.grid, self.shape, strict=True))
        return x, y, z

    def lanes(self, shared_stride: int) -> Lanes:
        """All threads of the grid."""
        warps, threads = self.size * self.warps_in_cta, self.size * self.threads
        return Lanes(self.count, warps, shared_stride, threads, self.size)

    def cta(self, cluster: Any, warp: Any) -> Any:
        """The number in the grid of the CTA that a warp of a cluster belongs to."""
        if self.size == 1:
            return cluster
        outer = coordinates(cluster, self.in_grid)
        inner = coordinates(warp // self.warps_in_cta, self.shape)
        x, y, z = (o * c + i for o, i, c in zip(outer, inner, self.shape, strict=True))
        return x + self.grid[0] * (y + self.grid[1] * z)

    def rank(self, warp: Any) -> Any:
        """The rank in its cluster of the CTA that a warp of a cluster belongs to."""
        return warp // self.warps_in_cta

    def warp(self, warp: Any) -> Any:
        """The number of a warp of a cluster inside its CTA."""
        return warp % self.warps_in_cta


def coordinates(number: Any, shape: Shape) -> tuple[Any, Any, Any]:
    """Where a number is in a grid, x running fastest."""
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def map_address(address: NDArray[Any], rank: NDArray[Any]) -> NDArray[Any]:
    """mapa: the address of the same byte in the CTA of another rank."""
    local = address % address.dtype.type(WINDOW)
    mapped: NDArray[Any] = local + (rank.astype(address.dtype) + address.dtype.type(1)) * WINDOW
    return mapped.astype(address.dtype)


def rank_of(address: NDArray[Any], own: NDArray[Any]) -> NDArray[np.uint32]:
    """getctarank: whose shared memory an address lies in."""
    window = (address // WINDOW).astype(np.int64)
    return np.where(window > 0, window - 1, own).astype(np.uint32)
