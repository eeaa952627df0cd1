# SPDX-License-Identifier: Apache-2.0
"""The block masks of torch's flex_attention as mask functions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.errors import UnsupportedError, quoted
from flash_attention.program.nodes import BATCH, HEAD
from flash_attention.program.torch_reader import Coordinates, see
from flash_attention.program.trace import MaskFunction, Traced, trace_mask

if TYPE_CHECKING:  # importing it takes seconds, as it imports torch's compiler
    from torch.nn.attention.flex_attention import BlockMask

NO_BLOCKS = 1 << 30  # the block size of a mask that torch makes where none is given
MOST_SCORES = 1 << 23  # whose visibility is computed at a time


def check_block_mask(mask: BlockMask, query: Tensor, key: Tensor) -> None:
    """Check that a block mask is for tensors (batch, heads, seq, d) of these sizes."""
    if not hasattr(mask, "kv_indices"):
        raise UnsupportedError(
            f"block_mask is {quoted(mask)}; pass a BlockMask, as create_block_mask of torch makes"
            " one, or call flash_attention.attention, whose mask is a function"
        )
    if mask.kv_indices.ndim != 4:
        raise UnsupportedError(
            f"kv_indices of block_mask has shape {tuple(mask.kv_indices.shape)}; allowed are four"
            " dimensions, (batch, heads, blocks of queries, blocks of keys)"
        )
    if mask.kv_indices.device != query.device:
        raise UnsupportedError(
            f"block_mask is on {mask.kv_indices.device}, query on {query.device}; move it with"
            " block_mask.to(query.device)"
        )
    given, wanted = mask.shape, (*query.shape[:2], query.shape[2], key.shape[2])
    agree = all(size in (1, own) for size, own in zip(given[:2], wanted[:2], strict=True))
    if min(mask.BLOCK_SIZE) < NO_BLOCKS:
        agree = agree and given[2:] == wanted[2:]
    if not agree:
        raise UnsupportedError(
            f"block_mask is for (batch, heads, seq_q, seq_k) = {given}, and query and key have"
            f" {wanted}; make one for these sizes, where 1 stands for any batch and head"
        )


class BlockMaskLists:
    """What the lists of a block mask say, and the mask function that follows.

    Lists that torch made from a mask function say the same as the function, which then decides
    alone: kernels skip blocks by what they know of it.
    """

    def __init__(self, mask: BlockMask, seq_q: int, seq_k: int) -> None:
        self._of = _lists(mask)
        self._versions = _versions(self._of)
        self._mask_mod: MaskFunction = mask.mask_mod
        self._lengths = seq_q, seq_k
        self.mask = self._function(*_tables(mask, seq_q, seq_k))

    def are_those_of(self, mask: BlockMask, seq_q: int, seq_k: int) -> bool:
        """Whether a block mask has the lists and the function that it had, for these lengths."""
        if mask.mask_mod is not self._mask_mod or (seq_q, seq_k) != self._lengths:
            return False
        now = _lists(mask)
        same = all(one is other for one, other in zip(now, self._of, strict=True))
        return same and self._versions is not None and _versions(now) == self._versions

    def _function(
        self, partial: Tensor, full: Tensor, sizes: tuple[int, int]
    ) -> MaskFunction | None:
        traced = trace_mask(self._mask_mod)
        sees_all = _sees_all(traced)
        listed = partial | full
        if sees_all and bool(listed.all()):
            return None
        if _agree(traced, listed, full, sizes, self._lengths):
            return self._mask_mod
        if sees_all:
            return _of_tables(listed, None, self._mask_mod, sizes)
        return _of_tables(partial, full, self._mask_mod, sizes)


def listed_mask(mask: BlockMask, seq_q: int, seq_k: int) -> MaskFunction:
    """The mask function of a block mask, whatever the lists say. This waits for no GPU."""
    partial, full, sizes = _tables(mask, seq_q, seq_k)
    return _of_tables(partial, full, mask.mask_mod, sizes)


def _tables(mask: BlockMask, seq_q: int, seq_k: int) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Return which blocks need the mask function, which are full, and the size of a block."""
    rows, columns = mask.BLOCK_SIZE
    sizes = min(rows, seq_q), min(columns, seq_k)
    counts, indices, full_counts, full_indices = _lists(mask)
    assert counts is not None
    assert indices is not None
    partial = _listed(counts, indices, seq_k, sizes[1])
    if full_counts is None or full_indices is None:
        return partial, torch.zeros_like(partial), sizes
    return partial, _listed(full_counts, full_indices, seq_k, sizes[1]), sizes


def _of_tables(
    partial: Tensor, full: Tensor | None, mask_mod: MaskFunction, sizes: tuple[int, int]
) -> MaskFunction:
    """Return the mask function of blocks. Without full ones, all of a block that is listed is
    seen."""
    batches, heads = partial.shape[:2]

    def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        of = (batch if batches > 1 else 0, head if heads > 1 else 0)
        at = (*of, query // sizes[0], key // sizes[1])
        if full is None:
            return partial[at]
        return full[at] | (partial[at] & mask_mod(batch, head, query, key))

    return mask


def _lists(mask: BlockMask) -> tuple[Tensor | None, ...]:
    return mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices


def _versions(lists: tuple[Tensor | None, ...]) -> list[int] | None:
    """Return how often lists were changed in place, or None if torch does not count it."""
    given = [t for t in lists if t is not None]
    return None if any(t.is_inference() for t in given) else [t._version for t in given]


def _listed(counts: Tensor, indices: Tensor, seq_k: int, size: int) -> Tensor:
    """Return which blocks are listed: bool (batch, heads, blocks of queries, blocks of keys)."""
    columns = -(-seq_k // size)
    entries = torch.arange(indices.shape[-1], device=indices.device)
    column = torch.where(entries < counts[..., None], indices, columns).clamp(max=columns)
    found = torch.zeros((*indices.shape[:3], columns + 1), dtype=torch.bool, device=indices.device)
    return found.scatter_(-1, column.long(), True)[..., :columns].contiguous()


def _sees_all(traced: Traced) -> bool:
    """Whether a mask is true whatever the coordinates and captured tensors, as torch's noop_mask
    is."""
    if traced.program.mask_depends or traced.tensors:
        return False
    zero = torch.zeros((), dtype=torch.int32)
    return bool(see(traced, Coordinates(zero, zero, zero, zero)))


def _agree(
    traced: Traced,
    listed: Tensor,
    full: Tensor,
    sizes: tuple[int, int],
    lengths: tuple[int, int],
) -> bool:
    """Whether a mask hides all of the blocks that are not listed, and nothing of full ones."""
    seq_q, seq_k = lengths
    depends, device = traced.program.mask_depends, listed.device
    batches = range(listed.shape[0] if depends & BATCH else 1)
    heads = range(listed.shape[1] if depends & HEAD else 1)
    rows = sizes[0] * max(1, MOST_SCORES // (seq_k * sizes[0]))
    keys = torch.arange(seq_k, device=device)
    differ = torch.zeros((), dtype=torch.bool, device=device)
    for batch, head, first in itertools.product(batches, heads, range(0, seq_q, rows)):
        queries = torch.arange(first, min(first + rows, seq_q), device=device)
        in_batch = torch.full((1, 1, 1, 1), batch, device=device)
        in_head = torch.full((1, 1, 1, 1), head, device=device)
        seen = see(traced, Coordinates(in_batch, in_head, queries[:, None], keys))
        blocks = slice(first // sizes[0], -(-(first + len(queries)) // sizes[0]))
        own = (
            slice(batch, batch + 1) if len(batches) > 1 else slice(None),
            slice(head, head + 1) if len(heads) > 1 else slice(None),
            blocks,
        )
        differ |= (_any_of_blocks(seen, sizes) & ~listed[own]).any()
        differ |= (_any_of_blocks(~seen, sizes) & full[own]).any()
    return not differ


def _any_of_blocks(scores: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Return which blocks of (batch, heads, queries, keys) have a true element."""
    queries, keys = scores.shape[2:]
    whole = F.pad(scores, (0, -keys % sizes[1], 0, -queries % sizes[0]))
    blocks: Tensor = whole.unflatten(3, (-1, sizes[1])).unflatten(2, (-1, sizes[0]))
    return blocks.any(-1).any(3)
