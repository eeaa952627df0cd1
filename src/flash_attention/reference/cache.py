# SPDX-License-Identifier: Apache-2.0
"""Updates of a KV cache with operations of torch, on any device and without reading values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys, Rotary


class Places(NamedTuple):
    """Where the new rows of each sequence go, (batch, new_rows), clamped to the cache; and which
    sequences did not need clamping."""

    entries: Tensor
    rows: Tensor
    fits: Tensor  # bool (batch,)


def update_with_torch(call: CacheCall) -> CachedKeys:
    """Store the new rows of a checked call, and describe the keys."""
    lengths = lengths_of(call)
    places = new_places(call)
    pads = torch.zeros_like(lengths) if call.leftpad is None else call.leftpad
    fits = places.fits & (pads >= 0) & (pads <= lengths + call.new_rows)
    q, k = call.q, call.k
    if call.rotary is not None:
        first = call.rotary.seqlens if call.rotary.seqlens is not None else lengths
        fits = fits & _has_angles(call, call.rotary, first)
        q = _rotated_queries(call, call.rotary, first, fits)
        if k is not None:
            at = first[:, None] + torch.arange(k.shape[1], device=k.device)
            k = rotated(k, call.rotary, at)
    if k is not None and call.v is not None and k.numel():
        _store(call, places._replace(fits=fits), k, call.v)
    pads = torch.where(fits, pads, 0)
    used = torch.where(fits, lengths + call.new_rows - pads, 0)
    starts = None
    if call.leftpad is not None and not call.own_page_rows:
        starts = torch.arange(call.batch + 1, dtype=torch.int32, device=used.device)
        starts = starts * call.max_rows
        starts[:-1] += pads
    return CachedKeys(q, used, starts, _own_table(call, pads) if call.own_page_rows else None)


def lengths_of(call: CacheCall) -> Tensor:
    """Return the number of rows in use of each sequence, before new rows are stored."""
    if isinstance(call.lengths, Tensor):
        return call.lengths
    device = call.k_cache.device
    return torch.full((call.batch,), call.lengths, dtype=torch.int32, device=device)


def new_places(call: CacheCall) -> Places:
    """Return where the new rows go."""
    lengths, new_rows = lengths_of(call), call.new_rows
    start = lengths.clamp(0, call.max_rows - new_rows)
    rows = start.long()[:, None] + torch.arange(new_rows, device=lengths.device)
    entries, named = _entries(call, rows)
    return Places(entries, rows % max(call.k_cache.shape[1], 1), (start == lengths) & named.all(1))


def _entries(call: CacheCall, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entry of each row of each sequence, (batch, n), clamped to the cache, and whether
    it was there."""
    count, entry_rows = call.k_cache.shape[:2]
    own = torch.arange(call.batch, device=rows.device)
    place = own if call.batch_index is None else call.batch_index.long()
    places = count if call.table is None else len(call.table)
    clamped = place.clamp(0, max(places - 1, 0))
    there = (place == clamped)[:, None]
    if call.table is None:
        return clamped[:, None].expand_as(rows), there.expand_as(rows) & (count > 0)
    named = call.table[clamped].long().gather(1, rows // entry_rows)
    entries = named.clamp(0, count - 1)
    return entries, there & (entries == named)


def _store(call: CacheCall, places: Places, k: Tensor, v: Tensor) -> None:
    fits = places.fits
    # Rows that do not fit have no location of their own in the cache. They repeat what a sequence
    # that fits stores, or, if none does, what is there.
    source = torch.where(fits, torch.arange(call.batch, device=fits.device), fits.int().argmax())
    at, keep = (places.entries[source], places.rows[source]), fits.any()
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
    last = first + torch.as_tensor(queries, device=first.device).clamp(min=call.new_rows)
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
    entries, there = _entries(call, rows)
    pages = (entries * entry_rows + rows % max(entry_rows, 1)) // max(page, 1)
    return torch.where(there, pages, -1).int()
