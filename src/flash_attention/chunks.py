# SPDX-License-Identifier: Apache-2.0
"""Keys in chunks: few queries of many keys become enough tiles to fill a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flash_attention.arch import WARP_SIZE
from flash_attention.errors import UnsupportedError
from flash_attention.features import Features
from flash_attention.kernel_configs.hopper_forward import WARPGROUP_ROWS

if TYPE_CHECKING:
    from flash_attention.problem import Problem

COMBINE_THREADS = 128  # of a CTA that combines parts, a warp to a row
COMBINE_ROWS = COMBINE_THREADS // WARP_SIZE
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Chunks:
    """How keys are cut. The output of a chunk is a part, in float32, and the parts of a row are
    combined afterwards. Heads of q that share one of k and v lie side by side in a tile."""

    blocks: int  # of the kernel's B_c keys in a chunk; the last one may be shorter
    count: int
    heads_together: int = 1

    @classmethod
    def of(cls, problem: Problem, block_keys: int, blocks: int) -> Chunks:
        """Chunks of so many blocks of keys, one at least."""
        group = problem.heads_per_kv
        there = max(1, -(-problem.seq_k // block_keys))
        blocks = min(blocks, there)
        return cls(blocks, -(-there // blocks), group if group <= WARPGROUP_ROWS else 1)

    @classmethod
    def of_keys(cls, problem: Problem, block_keys: int, keys: int) -> Chunks:
        """Chunks of so many keys, which blocks must divide."""
        if keys % block_keys:
            raise UnsupportedError(
                f"split_keys is {keys}, and the kernel visits keys in blocks of {block_keys}; pass"
                f" a multiple, {-(-keys // block_keys) * block_keys} is the next"
            )
        return cls.of(problem, block_keys, keys // block_keys)

    def features(self, features: Features) -> Features:
        """What the kernel must be able to do besides what its problem asks."""
        return replace(features, heads_together=self.heads_together, chunked=True)

    def num_tiles(self, problem: Problem, consumers: int) -> int:
        """A tile is a chunk of keys and the rows of all consumers, whole queries in each."""
        group = self.heads_together
        rows = WARPGROUP_ROWS // group * group * consumers
        q_blocks = -(-problem.seq_q * group // rows)
        return problem.batch * (problem.heads // group) * q_blocks * self.count

    def output_bytes(self, problem: Problem) -> int:
        """The outputs of all parts."""
        return self.lse_bytes(problem) * problem.d_v

    def lse_bytes(self, problem: Problem) -> int:
        """The log-sum-exps of all parts."""
        return self.count * self.num_rows(problem) * FLOAT_BYTES

    @staticmethod
    def num_rows(problem: Problem) -> int:
        return problem.batch * problem.heads * problem.seq_q

    def combine_grid(self, problem: Problem) -> int:
        """CTAs that combine the parts of all rows."""
        return -(-self.num_rows(problem) // COMBINE_ROWS)
