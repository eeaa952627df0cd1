# SPDX-License-Identifier: Apache-2.0
"""KvSplits: how split-KV divides the keys of decoding between CTAs, to fill a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flash_attention.arch import WARP_SIZE
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS, tile_rows
from flash_attention.families.sm90.forward.features import SplitKind

FLOAT_BYTES = 4
NEXT_TILE_BLOCKS = 4  # key blocks that a CTA visits in the time of going over to another tile
NEXT_TILE_SHARE = 0.04  # how much longer splits within tiles may be, if they are long
MOST_ROWS_AT_ONCE = 80  # rows of partial results that the last CTA of a tile combines
MOST_PARTIALS_AT_ONCE = WARP_SIZE  # of a row, a lane for each


@dataclass(frozen=True)
class KvSplits:
    """How the keys are split between CTAs in decoding, if they are.

    Each split of a tile gives a partial result in float32. The partial results of a row are
    combined afterwards. Heads of q that share a head of k and v share a tile.
    """

    kind: SplitKind  # EVEN splits may span tiles; with FIXED each tile starts a new split
    blocks: int  # key blocks of a split
    key_blocks: int  # key blocks of the longest sequence
    heads_together: int
    one_launch: bool = False  # the last CTA of a tile combines its partial results
    ctas: int = 0  # that share the key blocks of all tiles, if the device splits them

    @classmethod
    def of_keys(
        cls, problem: Problem, block_keys: int, keys: int, heads_together: int = 0
    ) -> KvSplits:
        """Make splits of `keys` keys, a multiple of a key block, whatever else is in the batch."""
        if keys % block_keys:
            raise UnsupportedError(
                f"split_keys is {keys}, and the kernel visits keys in blocks of {block_keys}; pass"
                f" a multiple, {-(-keys // block_keys) * block_keys} is the next"
            )
        whole = cls.whole(problem, block_keys, heads_together)
        blocks = min(keys // block_keys, whole.key_blocks)
        return replace(whole, kind=SplitKind.FIXED, blocks=blocks)

    @classmethod
    def whole(cls, problem: Problem, block_keys: int, heads_together: int = 0) -> KvSplits:
        """Make one split per tile, which means no split. By default, heads that share a head of k
        and v share a tile if one warpgroup has room for them."""
        key_blocks = max(1, -(-problem.seq_k // block_keys))
        together = heads_together or _heads_together(problem)
        return cls(SplitKind.WHOLE, key_blocks, key_blocks, together)

    @classmethod
    def even(
        cls,
        problem: Problem,
        block_keys: int,
        count: int,
        least: int,
        *,
        heads_together: int = 0,
        consumers: int = 1,
    ) -> KvSplits:
        """Make one split per CTA for `count` CTAs, or fewer splits of at least `least` blocks. A
        split may span tiles."""
        whole = cls.whole(problem, block_keys, heads_together)
        blocks = -(-whole.num_tiles(problem, consumers) * whole.key_blocks // count)
        blocks = max(blocks, min(least, whole.key_blocks))
        return replace(whole, kind=SplitKind.EVEN, blocks=blocks)

    @classmethod
    def on_device(cls, problem: Problem, block_keys: int, ctas: int) -> KvSplits:
        """Make splits that `ctas` CTAs compute from the lengths of the sequences."""
        together = cls.whole(problem, block_keys).heads_together
        return cls(SplitKind.ON_DEVICE, 1, 1, together, one_launch=True, ctas=ctas)

    def within_tiles(self, longer: int = NEXT_TILE_BLOCKS) -> KvSplits:
        """Return splits that do not span tiles, or these ones if those would be much longer: by
        more than `longer` blocks if they are short."""
        if self.blocks > self.key_blocks:
            return self
        blocks = -(-self.key_blocks // (self.key_blocks // self.blocks))
        if blocks - self.blocks > max(longer, NEXT_TILE_SHARE * self.blocks):
            return self
        return replace(self, kind=SplitKind.FIXED, blocks=blocks)

    def with_launches(self, problem: Problem) -> KvSplits:
        """Return the splits with `one_launch` if a tile has few rows of partial results. More are
        left to a second kernel, which has a CTA for every row. The bits are the same."""
        rows = min(problem.seq_q * self.heads_together, WARPGROUP_ROWS)
        partials = self.most_partials
        few = partials <= MOST_PARTIALS_AT_ONCE and rows * partials <= MOST_ROWS_AT_ONCE
        return replace(self, one_launch=self.is_split and few)

    @property
    def most_partials(self) -> int:
        """The most partial results that a row has."""
        return -(-self.key_blocks // self.blocks) + (self.kind is SplitKind.EVEN)

    @property
    def is_split(self) -> bool:
        """Whether there are partial results to combine."""
        return self.kind is not SplitKind.WHOLE

    def tile_rows(self, consumers: int) -> int:
        """Count the rows of a tile that can hold a query."""
        return tile_rows(consumers, self.heads_together)

    def num_tiles(self, problem: Problem, consumers: int) -> int:
        """Count the tiles of query rows, regardless of splits. For packed sequences it is an upper
        bound, which include/fa/sm90/tile.cuh explains."""
        rows = problem.seq_q * self.heads_together
        tiles = problem.batch * -(-rows // self.tile_rows(consumers))
        if problem.total_q is not None:
            queries = self.tile_rows(consumers) // self.heads_together
            tiles = min(tiles, (problem.total_q + problem.batch * (queries - 1)) // queries)
        return tiles * (problem.heads // self.heads_together)

    def num_ctas(self, problem: Problem, consumers: int) -> int:
        """Count the CTAs, one per split."""
        if self.ctas:
            return self.ctas
        tiles = self.num_tiles(problem, consumers)
        if self.kind is SplitKind.EVEN:
            return -(-tiles * self.key_blocks // self.blocks)
        return tiles * -(-self.key_blocks // self.blocks)

    def num_partial_rows(self, problem: Problem, consumers: int) -> int:
        """Count the rows of all partial results. A split has one for every tile that it touches, or
        two if the device splits: one for the tile that it begins in, one for that it ends in."""
        partials = self.num_ctas(problem, consumers)
        if self.ctas:
            partials *= 2
        elif self.kind is SplitKind.EVEN:
            partials += self.num_tiles(problem, consumers)
        return partials * min(self.tile_rows(consumers), problem.seq_q * self.heads_together)

    def scratch(self, problem: Problem, consumers: int) -> dict[str, int]:
        """Return the bytes of the partial results, by the argument that holds their address."""
        if not self.is_split:
            return {}
        rows = self.num_partial_rows(problem, consumers)
        return {"o_partial": rows * problem.d_v * FLOAT_BYTES, "lse_partial": rows * FLOAT_BYTES}


def _heads_together(problem: Problem) -> int:
    group = problem.heads_per_kv
    return group if group <= WARPGROUP_ROWS else 1
