# SPDX-License-Identifier: Apache-2.0
"""Updates of a KV cache with operations of torch, on any device and without reading values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys, Rotary


class NewRows(NamedTuple):
    """The new rows of all sequences, one after the other: of which sequence each is, its number
    there, and whether it is of any."""

    of: Tensor  # int64 (n,), clamped to the batch
    row: Tensor  # int64 (n,)
    there: Tensor  # bool (n,)


class Places(NamedTuple):
    """Where new rows go, (n,), clamped to the cache; and which sequences did not need clamping."""

    entries: Tensor
    rows: Tensor
    fits: Tensor  # bool (batch,)


def update_with_torch(call: CacheCall) -> CachedKeys:
    """Store the new rows of a checked call, and describe the keys."""
    lengths, counts = lengths_of(call), _counts(call)
    new = _new_rows(call)
    places = new_places(call)
    pads = torch.zeros_like(lengths) if call.leftpad is None else call.leftpad
    fits = places.fits & (pads >= 0) & (pads <= lengths + counts)
    q, k = call.q, call.k
    if call.rotary is not None:
        first = call.rotary.seqlens if call.rotary.seqlens is not None else lengths
        fits = fits & _has_angles(call, call.rotary, first)
        q = _rotated_queries(call, call.rotary, first, fits)
    if k is not None and call.v is not None and k.numel():
        k, v = k.reshape(-1, *k.shape[-2:]), call.v.reshape(-1, *call.v.shape[-2:])
        if call.rotary is not None:
            k = rotated(k, call.rotary, first[new.of] + new.row)
        _store(call, places, new.there & fits[new.of], k, v)
    pads = torch.where(fits, pads, 0)
    used = torch.where(fits, lengths + counts - pads, 0)
    starts = None
    if call.leftpad is not None and not call.own_page_rows:
        starts = torch.arange(call.batch + 1, dtype=torch.int32, device=used.device)
        starts = starts * call.max_rows
        starts[:-1] += pads
    return CachedKeys(q, used, starts, _own_table(call, pads) if call.own_page_rows else None)


def lengths_of(call: CacheCall) -> Tensor:
    """Return the number of rows in use of each sequence, before new rows are stored."""
    return call.lengths if isinstance(call.lengths, Tensor) else _every(call, call.lengths)


def _counts(call: CacheCall) -> Tensor:
    """Return the number of new rows of each sequence."""
    if call.cu_seqlens_k_new is None:
        return _every(call, call.new_rows)
    return call.cu_seqlens_k_new.diff()


def _every(call: CacheCall, number: int) -> Tensor:
    """Return one number for all sequences."""
    return torch.full((call.batch,), number, dtype=torch.int32, device=call.k_cache.device)


def _new_rows(call: CacheCall) -> NewRows:
    device, starts = call.k_cache.device, call.cu_seqlens_k_new
    if starts is None:
        row = torch.arange(call.batch * call.new_rows, device=device)
        each = max(call.new_rows, 1)
        return NewRows(row // each, row % each, torch.ones_like(row, dtype=torch.bool))
    row = torch.arange(call.new_rows, dtype=torch.int32, device=device)
    of = (torch.searchsorted(starts, row, right=True) - 1).clamp(0, max(call.batch - 1, 0))
    return NewRows(of, (row - starts[of]).long(), (row >= starts[0]) & (row < starts[-1]))


def new_places(call: CacheCall) -> Places:
    """Return where the new rows go."""
    lengths, counts, new = lengths_of(call).long(), _counts(call), _new_rows(call)
    rows = (lengths[new.of] + new.row).clamp(0, max(call.max_rows - 1, 0))
    entries, named = _entries(call, new.of, rows)
    lost = torch.zeros_like(lengths).index_add(0, new.of, (new.there & ~named).long())
    fits = (lengths >= 0) & (lengths <= call.max_rows - counts) & (lost == 0)
    fits = fits & _has_last_key(call, lengths)
    return Places(entries, rows % max(call.k_cache.shape[1], 1), fits)


def _has_last_key(call: CacheCall, lengths: Tensor) -> Tensor:
    """Whether each sequence has a place, and the entry that a new row shares with the last key."""
    own = torch.arange(call.batch, device=lengths.device)
    shared = lengths % max(call.k_cache.shape[1], 1) > 0
    _, named = _entries(call, own, lengths.clamp(0, max(call.max_rows - 1, 0)))
    return _place(call, own)[1] & (named | ~shared)


def _entries(call: CacheCall, of: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entry of each row, which is one of the sequence `of`, clamped to the cache, and
    whether it was there."""
    count, entry_rows = call.k_cache.shape[:2]
    clamped, there = _place(call, of)
    if call.table is None:
        return clamped.expand_as(rows), there.expand_as(rows) & (count > 0)
    named = call.table[clamped, rows // entry_rows].long()
    entries = named.clamp(0, count - 1)
    return entries, there & (entries == named)


def _place(call: CacheCall, of: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of the table, or the entry, of sequences, clamped, and whether it was
    there."""
    place = of if call.batch_index is None else call.batch_index.long()[of]
    places = len(call.k_cache if call.table is None else call.table)
    clamped = place.clamp(0, max(places - 1, 0))
    return clamped, place == clamped


def _store(call: CacheCall, places: Places, stored: Tensor, k: Tensor, v: Tensor) -> None:
    # Rows that are not stored have no location of their own in the cache. They repeat what one that
    # is stored writes, or, if none is, what is there.
    source = torch.where(
        stored, torch.arange(len(stored), device=stored.device), stored.int().argmax()
    )
    at, keep = (places.entries[source], places.rows[source]), stored.any()
    for new, cache in ((k, call.k_cache), (v, call.v_cache)):
        cache[at] = torch.where(keep, new[source], cache[at])


def rotated(x: Tensor, rotary: Rotary, at: Tensor) -> Tensor:
    """Rotate rows (..., rows, heads, d) by their positions (..., rows), clamped to those that have
    an angle, in float32 or better."""
    at = at.long().clamp(0, len(rotary.cos) - 1)
    precision = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (t.to(precision)[at][..., None, :] for t in (rotary.cos, rotary.sin))
    turning, rest = x[..., : rotary.dim].to(precision), x[..., rotary.dim :]
    if rotary.interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
    else:
        first, second = turning.chunk(2, dim=-1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if rotary.interleaved else torch.cat(pair, -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _has_angles(call: CacheCall, rotary: Rotary, first: Tensor) -> Tensor:
    """Whether the new rows and the queries of each sequence have angles."""
    queries: Tensor | int = call.q.shape[1]
    if call.cu_seqlens_q is not None:
        queries = call.cu_seqlens_q.diff()
    if rotary.one_position:
        queries = 1
    last = first + torch.as_tensor(queries, device=first.device).maximum(_counts(call))
    return (first >= 0) & (last <= len(rotary.cos))


def _rotated_queries(call: CacheCall, rotary: Rotary, first: Tensor, fits: Tensor) -> Tensor:
    """Rotate q. Without an angle it stays what it is: it sees no key."""
    if call.cu_seqlens_q is None:
        row = torch.arange(call.q.shape[1], device=first.device)
        at = first[:, None] + (torch.zeros_like(row) if rotary.one_position else row)
        return torch.where(fits[:, None, None, None], rotated(call.q, rotary, at), call.q)
    row = torch.arange(len(call.q), dtype=torch.int32, device=first.device)
    starts = call.cu_seqlens_q
    of = (torch.searchsorted(starts, row, right=True) - 1).clamp(0, call.batch - 1)
    at = first[of] + (0 if rotary.one_position else row - starts[of])
    inside = fits[of] & (row >= starts[0]) & (row < starts[-1])
    return torch.where(inside[:, None, None], rotated(call.q, rotary, at), call.q)


def _own_table(call: CacheCall, pads: Tensor) -> Tensor:
    """Return the pages of each sequence's keys; -1 for those that do not exist."""
    page, entry_rows = call.own_page_rows, call.k_cache.shape[1]
    every = torch.arange(0, call.max_rows, max(page, 1), device=pads.device)
    rows = (pads.long()[:, None] + every).clamp(max=max(call.max_rows - 1, 0))
    own = torch.arange(call.batch, device=pads.device)
    entries, there = _entries(call, own[:, None], rows)
    pages = (entries * entry_rows + rows % max(entry_rows, 1)) // max(page, 1)
    return torch.where(there, pages, -1).int()
