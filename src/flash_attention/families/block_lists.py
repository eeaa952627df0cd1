# SPDX-License-Identifier: Apache-2.0
"""Lists of the blocks that tiles visit, where a user's mask function decides that."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.fit import MAX_GRID_X
from flash_attention.families.recipe import Geometry, Step
from flash_attention.families.traced_args import (
    layout_asserts,
    parameter,
    prelude,
)
from flash_attention.program.nodes import BATCH, HEAD, Program
from flash_attention.program.reads import tables
from flash_attention.program.verdict_text import verdict_text

THREADS = 128
WARPS = THREADS // 32
KNOWN = "Known"  # the C++ type that says what is known of a mask in a tile
COUNTS_BYTES = 16  # of ListCounts in include/fa/attn/block_list.cuh
BOUNDS_CTAS = 132  # which share the entries of all tables, whose blocks are parts of rows
MOST_BOUNDS_CTAS = 16 * BOUNDS_CTAS  # if blocks have many rows, which take a warp long


@dataclass(frozen=True)
class Listing:
    """Which side has the tiles: OfQueries or OfKeys of include/fa/lists/list_blocks.cuh; the rows
    of a tile and of a visited block; into how many pieces a tile of queries is divided, which pass
    over blocks by themselves; the keys of a narrow block; and whether the nearest blocks are
    visited first."""

    side: str
    tile_rows: int
    block_rows: int
    pieces: int = 1
    narrow_keys: int = 0
    nearest_first: bool = False


@dataclass(frozen=True)
class Lists:
    """The lists of a problem."""

    listing: Listing
    problem: Problem

    @property
    def _rows(self) -> tuple[int, int]:
        """The rows of the side that has the tiles, and of the side that they visit."""
        rows = self.problem.seq_q, self.problem.seq_k
        return rows if self.listing.side == "OfQueries" else rows[::-1]

    @property
    def _depends(self) -> int:
        assert self.problem.program is not None
        return self.problem.program.mask_depends

    @property
    def batches(self) -> int:
        """How many sequences have lists of their own."""
        differ = self._depends & BATCH or self.problem.per_batch
        return self.problem.batch if differ else 1

    @property
    def heads(self) -> int:
        """How many heads have lists of their own."""
        return self.problem.heads if self._depends & HEAD else 1

    @property
    def count(self) -> int:
        """How many lists there are."""
        return self.batches * self.heads * -(-self._rows[0] // self.listing.tile_rows)

    @property
    def stride(self) -> int:
        """The most entries of a list."""
        return max(-(-self._rows[1] // self.listing.block_rows), 1)

    @property
    def scratch(self) -> dict[str, int]:
        """The bytes of the lists, of their counts, and of bounds of captured tensors."""
        bounds = {"bounds": self.problem.bounds_bytes} if self.problem.bounds_bytes else {}
        return {
            "list_entries": 4 * self.count * self.stride,
            "list_counts": COUNTS_BYTES * self.count,
            **bounds,
        }

    def put(self, args: Any, asserts: str, target: str) -> tuple[Step, ...]:
        """Store the numbers of the lists in the arguments of kernels, and return the kernels that
        make the lists. `asserts` are those of the arguments without a function."""
        args.list_stride = self.stride
        args.list_batches, args.list_heads = self.batches, self.heads
        base: Any = type(args).__base__
        program = self.problem.program
        assert program is not None
        features = self.problem.features
        made = []
        if heights := tables(program).values():
            unit = _unit("fill_bounds", self.listing, features, base, asserts, target)
            entries = self.problem.bounds_bytes // 8
            most = BOUNDS_CTAS if max(heights) == 1 else MOST_BOUNDS_CTAS
            ctas = min(-(-entries // WARPS), most)
            made.append(Step(unit, Geometry((ctas, 1, 1), THREADS)))
        ctas = min(-(-self.count // WARPS), MAX_GRID_X)
        unit = _unit("list_blocks", self.listing, features, base, asserts, target)
        return (*made, Step(unit, Geometry((ctas, 1, 1), THREADS)))


@kept
def _unit(
    kernel: str,
    listing: Listing,
    features: Features,
    base: type[ctypes.Structure],
    asserts: str,
    target: str,
) -> Unit:
    program: Program | None = features.program
    assert program is not None
    lengths = "PerBatch" if features.per_batch else "Same"
    rows = listing.tile_rows, listing.block_rows, listing.pieces, listing.narrow_keys
    words = [listing.side.lower(), *(str(number) for number in rows)]
    words += ["nearest_first"] * listing.nearest_first
    words += [features.mask.value.lower(), lengths.lower(), program.digest]
    name = f"{kernel}_{'_'.join(words)}"
    source = render(
        entry=f"flash_{name}",
        title=f"{kernel} of a mask function",
        header="fa/lists/list_blocks.cuh",
        bindings=(
            Variant("Mask", "attn/mask", features.mask.value),
            Variant("Lengths", "attn/lengths", lengths),
            Number("tile_rows", listing.tile_rows),
            Number("block_rows", listing.block_rows),
            Number("pieces", listing.pieces),
            Number("narrow_keys", listing.narrow_keys),
            Number("nearest_first", int(listing.nearest_first)),
            Number("threads", THREADS),
        ),
        asserts=layout_asserts(base, program, asserts),
        bounds=f"{THREADS}",
        prelude=f"{prelude(program)}\n{verdict_text(program, KNOWN)}",
        parameters=(parameter(base, program, ""),),
        body=(f"fa::lists::{kernel}<Config, {KNOWN}, fa::lists::{listing.side}>(args);",),
    )
    return Unit(name, target, source)
