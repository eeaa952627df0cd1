# SPDX-License-Identifier: Apache-2.0
"""DenseProblem: the problems that can be tuned, and the distance between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import family_of

SHARED_FIELDS = ("d_head", "d_v", "causal", "seq_q", "seq_k", "batch", "heads", "heads_k")
TILE_ROWS = 128  # query rows of a typical tile, to estimate how well a problem fills a GPU
TILES_WEIGHT = 0.5  # twice the tiles matter only if they do not fill the GPU yet


@dataclass(frozen=True, order=True)
class DenseProblem:
    """Full or causal attention of sequences of the same length."""

    dtype: DType
    d_head: int
    d_v: int
    causal: bool
    seq_q: int
    seq_k: int
    batch: int
    heads: int
    heads_k: int

    @classmethod
    def of(cls, problem: Problem) -> DenseProblem | None:
        """Convert a problem. Returns None if it has features besides a causal mask, or if there is
        nothing to compute."""
        if not problem.features.dense or problem.idle:
            return None
        values = {name: getattr(problem, name) for name in SHARED_FIELDS}
        return cls(DType.from_string(str(problem.dtype)), **values)

    @property
    def problem(self) -> Problem:
        """The problem with the default softmax scale."""
        values = {name: getattr(self, name) for name in SHARED_FIELDS}
        dtype, scale = self.dtype.to_torch_dtype(), self.d_head**-0.5
        return Problem(**values, dtype=dtype, softmax_scale=scale)

    def features_for(self, config: KernelConfig) -> Features:
        """Return the features of the kernel of a config that runs this problem."""
        features: Features = family_of(config).features(config, self.problem)
        return features

    @property
    def kind(self) -> tuple[DType, int, int, bool]:
        """What two problems must have in common for their configs to be comparable."""
        return self.dtype, self.d_head, self.d_v, self.causal

    def distance(self, other: DenseProblem) -> float:
        """The doublings of the lengths, plus half the doublings of the number of tiles."""
        return (
            abs(log2(self.seq_q / other.seq_q))
            + abs(log2(self.seq_k / other.seq_k))
            + TILES_WEIGHT * abs(log2(self._tiles / other._tiles))
        )

    @property
    def _tiles(self) -> int:
        return self.batch * self.heads * ceil(self.seq_q / TILE_ROWS)

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        columns = f"{self.d_head}" if self.d_v == self.d_head else f"{self.d_head}/{self.d_v}"
        rows = f"{self.seq_q}" if self.seq_k == self.seq_q else f"{self.seq_q}/{self.seq_k}"
        heads = f"{self.heads}" if self.heads_k == self.heads else f"{self.heads}/{self.heads_k}"
        return f"{self.dtype.name} d {columns} {mask}, {self.batch} x {rows} rows x {heads} heads"
