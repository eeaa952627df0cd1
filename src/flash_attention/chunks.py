# SPDX-License-Identifier: Apache-2.0
"""Keys in chunks: few queries of many keys become enough work to fill a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flash_attention.errors import UnsupportedError
from flash_attention.features import Features, SplitKind
from flash_attention.kernel_configs.hopper_forward import WARPGROUP_ROWS, tile_rows

if TYPE_CHECKING:
    from flash_attention.problem import Problem

COMBINE_THREADS = 128  # of a CTA that combines the parts of a row
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Chunks:
    """How the keys of short queries are cut, if they are. The output of a tile in a chunk is a
    part, in float32, and the parts of a row are combined afterwards. Heads of q that share one of
    k and v lie side by side in a tile."""

    splits: SplitKind  # EVEN chunks run on from tile to tile; CHUNKED tiles begin with a new one
    blocks: int  # of the kernel's B_c keys in a chunk
    key_blocks: int  # of the longest keys
    heads_together: int

    @classmethod
    def of_keys(cls, problem: Problem, block_keys: int, keys: int) -> Chunks:
        """Chunks of so many keys, which blocks must divide, whatever else is in the batch."""
        if keys % block_keys:
            raise UnsupportedError(
                f"split_keys is {keys}, and the kernel visits keys in blocks of {block_keys}; pass"
                f" a multiple, {-(-keys // block_keys) * block_keys} is the next"
            )
        key_blocks = _key_blocks(problem, block_keys)
        blocks = min(keys // block_keys, key_blocks)
        return cls(SplitKind.CHUNKED, blocks, key_blocks, _heads_together(problem))

    @classmethod
    def whole(cls, problem: Problem, block_keys: int) -> Chunks:
        """One chunk for each tile."""
        key_blocks = _key_blocks(problem, block_keys)
        return cls(SplitKind.WHOLE, key_blocks, key_blocks, _heads_together(problem))

    @classmethod
    def for_ctas(cls, problem: Problem, block_keys: int, count: int, least: int) -> Chunks:
        """One chunk for each of `count` CTAs, or fewer of no less than `least` blocks."""
        whole = cls.whole(problem, block_keys)
        blocks = -(-whole.num_tiles(problem, consumers=1) * whole.key_blocks // count)
        blocks = max(blocks, min(least, whole.key_blocks))
        return replace(whole, splits=SplitKind.EVEN, blocks=blocks)

    def features(self, features: Features) -> Features:
        """What the kernel must be able to do besides what its problem asks."""
        return replace(
            features, heads_together=self.heads_together, few_queries=True, splits=self.splits
        )

    @property
    def in_parts(self) -> bool:
        """Whether parts are left to combine."""
        return self.splits is not SplitKind.WHOLE

    def tile_rows(self, consumers: int) -> int:
        """Rows of a tile that may hold a query."""
        return tile_rows(consumers, self.heads_together)

    def num_tiles(self, problem: Problem, consumers: int) -> int:
        """Tiles of query rows; each has all the keys."""
        rows = problem.seq_q * self.heads_together
        q_blocks = -(-rows // self.tile_rows(consumers))
        return problem.batch * (problem.heads // self.heads_together) * q_blocks

    def num_ctas(self, problem: Problem, consumers: int) -> int:
        """A CTA has one chunk."""
        tiles = self.num_tiles(problem, consumers)
        if self.splits is SplitKind.EVEN:
            return -(-tiles * self.key_blocks // self.blocks)
        return tiles * -(-self.key_blocks // self.blocks)

    def num_part_rows(self, problem: Problem, consumers: int) -> int:
        """Rows of all parts; chunks that run on leave a part in every tile they touch."""
        parts = self.num_ctas(problem, consumers)
        if self.splits is SplitKind.EVEN:
            parts += self.num_tiles(problem, consumers)
        return parts * min(self.tile_rows(consumers), problem.seq_q * self.heads_together)

    @staticmethod
    def combine_grid(problem: Problem) -> int:
        """CTAs that combine parts, one for every row."""
        return problem.batch * problem.heads * problem.seq_q


def _key_blocks(problem: Problem, block_keys: int) -> int:
    return max(1, -(-problem.seq_k // block_keys))


def _heads_together(problem: Problem) -> int:
    group = problem.heads_per_kv
    return group if group <= WARPGROUP_ROWS else 1
