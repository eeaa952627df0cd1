# SPDX-License-Identifier: Apache-2.0
"""A cache of keys and values as flash-attn describes it, in the terms of `attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from flash_attention.call.call import Keywords
from flash_attention.errors import UnsupportedError


@dataclass(frozen=True)
class Cache:
    """Keys and values in rows of batch entries, or in pages that a table names.

    A cache whose entries are reordered is one of pages: each entry is a page.
    """

    k: Tensor
    v: Tensor
    table: Tensor | None
    leftpad: Tensor | None  # rows of each entry before its first key

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor | None,
        cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None,
    ) -> Cache:
        """The cache that these describe together."""
        given = {
            "block_table": block_table,
            "cache_batch_idx": cache_batch_idx,
            "cache_leftpad": cache_leftpad,
        }
        names = [name for name, tensor in given.items() if tensor is not None]
        if len(names) > 1:
            raise UnsupportedError(
                f"{' and '.join(names)} are given, and a cache has pages, or moved entries, or"
                " entries that start late, no two of them; leave all but one out"
            )
        if k_cache.shape[:-1] != v_cache.shape[:-1]:
            raise UnsupportedError(
                f"k_cache has shape {tuple(k_cache.shape)}, v_cache {tuple(v_cache.shape)}; they"
                " must agree in all but the last dimension"
            )
        table = block_table
        if block_table is not None:
            _check_numbers("block_table", block_table, "(batch, pages)")
        if cache_batch_idx is not None:
            _check_numbers("cache_batch_idx", cache_batch_idx)
            table = cache_batch_idx[:, None]
        if cache_leftpad is not None:
            _check_numbers("cache_leftpad", cache_leftpad)
            for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
                _check_entries_adjoin(name, tensor)
        return cls(k_cache, v_cache, table, cache_leftpad)

    @property
    def max_keys(self) -> int:
        """Keys of the longest entry there may be."""
        rows = self.k.shape[1]
        return rows if self.table is None else rows * self.table.shape[1]

    def lengths(self, given: int | Tensor | None, batch: int, new: Tensor | None) -> Tensor | None:
        """How many rows of each sequence are in use, before `new` ones are stored. Raises where
        the host knows that there is no room: numbers on a GPU are not waited for."""
        if given is None:
            return None
        new_rows = 0 if new is None else new.shape[1]
        if isinstance(given, int):
            self._check_room("cache_seqlens", given, new_rows)
            return torch.full((batch,), given, dtype=torch.int32, device=self.k.device)
        _check_numbers("cache_seqlens", given)
        if len(given) != batch or given.device != self.k.device:
            raise UnsupportedError(
                f"cache_seqlens has {len(given)} numbers on {given.device}; pass {batch}, one for"
                f" each sequence of q, on {self.k.device}"
            )
        described = len(self.k if self.table is None else self.table)
        if described != batch:
            raise UnsupportedError(
                f"the cache is described for {described} sequences; q has {batch}, pass as many"
                " entries of k_cache, rows of block_table or numbers in cache_batch_idx"
            )
        self._check_room("the least of cache_seqlens", 0, new_rows)
        if has_values(given):
            for sequence, rows in enumerate(given.tolist()):
                self._check_room(f"cache_seqlens[{sequence}]", rows, new_rows)
        return given

    def _check_room(self, name: str, rows: int, new_rows: int) -> None:
        room = self.max_keys - new_rows
        if not 0 <= rows <= room:
            new = f" and there are {new_rows} new keys" if new_rows else ""
            more = "" if self.table is None else ", or a block_table with more pages"
            allowed = f"allowed are 0 to {room}" if room >= 0 else "they do not fit"
            raise UnsupportedError(
                f"{name} is {rows}{new}; the cache has room for {self.max_keys} keys of a"
                f" sequence, {allowed}: pass a longer cache{more}"
            )

    def append(self, k: Tensor | None, v: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Store new rows behind those in use; the numbers of rows in use then.

        Of a sequence that has no room for all of its new rows none is stored, and its number is 0.
        """
        if k is None or v is None or lengths is None:
            names = {"k": k, "v": v, "cache_seqlens": lengths}
            missing = ", ".join(name for name, value in names.items() if value is None)
            raise UnsupportedError(
                f"{missing} is missing; to store new keys and values in a cache pass k, v and"
                " cache_seqlens together"
            )
        batch, new_rows = len(lengths), k.shape[1]
        for name, new, cache in (("k", k, self.k), ("v", v, self.v)):
            _check_new(name, new, cache, (batch, new_rows))
        if not batch * new_rows:
            return lengths
        at, fits = self._places(lengths, new_rows)
        keep = fits[:, None, None, None]
        if self.table is not None:
            if has_values(fits) and not bool(fits.all()):
                raise UnsupportedError(
                    f"block_table or cache_batch_idx is {self.table[~fits].tolist()} where new keys"
                    f" go; the cache has {len(self.k)} entries, allowed are 0 to {len(self.k) - 1}"
                )
            # What does not fit has no place in the cache that is surely its own. It repeats what
            # a sequence that fits stores, or, if none does, what is there.
            source = torch.where(fits, torch.arange(batch, device=fits.device), fits.int().argmax())
            at, k, v, keep = (at[0][source], at[1][source]), k[source], v[source], fits.any()
        for new, cache in ((k, self.k), (v, self.v)):
            cache[at] = torch.where(keep, new, cache[at])
        return torch.where(fits, lengths + new_rows, 0)

    def _places(self, lengths: Tensor, new_rows: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """For each new row, (batch, seq_new), the entry or page of the cache and the row in it,
        within its bounds; and the sequences that needed no bounds."""
        device, (count, size) = lengths.device, self.k.shape[:2]
        start = lengths.clamp(0, self.max_keys - new_rows)
        fits = start == lengths
        rows = start.long()[:, None] + torch.arange(new_rows, device=device)
        if self.table is None:
            return (torch.arange(len(lengths), device=device)[:, None], rows), fits
        named = self.table.long().gather(1, rows // size)
        entries = named.clamp(0, count - 1)
        return (entries, rows % size), fits & (entries == named).all(1)

    def described(self, options: Keywords, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """k and v as `attention` takes them; how they are to be read goes into `options`."""
        if self.leftpad is not None:
            return self._packed(options, self.leftpad, lengths)
        if self.table is not None and lengths is None:
            lengths = torch.full_like(self.table[:, 0], self.max_keys)
        options["seqused_k"], options["block_table"] = lengths, self.table
        return self.k, self.v

    def _packed(
        self, options: Keywords, leftpad: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """All rows one after the other; an entry reaches from its first key to the next one's."""
        batch, rows = self.k.shape[:2]
        starts = torch.arange(batch + 1, dtype=torch.int32, device=leftpad.device) * rows
        starts[:-1] += leftpad
        used = (rows if lengths is None else lengths) - leftpad
        if has_values(used) and bool((used < 0).any()):
            sequence = int(used.argmin())
            raise UnsupportedError(
                f"cache_leftpad[{sequence}] is {int(leftpad[sequence])}, more than the keys of the"
                " sequence, cache_seqlens; allowed are 0 to as many"
            )
        options["cu_seqlens_k"], options["max_seqlen_k"] = starts, 2 * rows
        options["seqused_k"] = used.clamp_(min=0)  # of one that did not fit
        return self.k.flatten(0, 1), self.v.flatten(0, 1)


def has_values(numbers: Tensor) -> bool:
    """Whether values can be read without waiting for a device."""
    return numbers.device.type == "cpu" and not (
        torch.compiler.is_compiling() or isinstance(numbers, FakeTensor)
    )


def _check_numbers(name: str, tensor: object, shape: str = "(batch,)") -> None:
    """Integers for each sequence of q."""
    wanted = f"pass a torch.int32 tensor of shape {shape}, batch being that of q"
    if not isinstance(tensor, Tensor):
        raise UnsupportedError(f"{name} is a {type(tensor).__name__}; {wanted}")
    if tensor.ndim != shape.count(" ") + 1 or tensor.dtype != torch.int32:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and is {tensor.dtype}; {wanted}"
        )


def _check_entries_adjoin(name: str, cache: Tensor) -> None:
    """Rows of all entries are one apart throughout, so that they need not be copied."""
    batch, rows = cache.shape[:2]
    if batch > 1 and cache.stride(0) != rows * cache.stride(1):
        raise UnsupportedError(
            f"cache_leftpad is given, and the entries of {name} lie {cache.stride(0)} elements"
            f" apart, their {rows} rows take {rows * cache.stride(1)}; pass a cache without gaps,"
            f" {name}.contiguous()"
        )


def _check_new(name: str, new: Tensor, cache: Tensor, size: tuple[int, int]) -> None:
    """New rows have the heads, the columns and the dtype of the cache, v as many as k."""
    wanted = (*size, *cache.shape[2:])
    if (tuple(new.shape), new.dtype, new.device) != (wanted, cache.dtype, cache.device):
        raise UnsupportedError(
            f"{name} has shape {tuple(new.shape)} and is {new.dtype} on {new.device}; to be stored"
            f" in {name}_cache it must be (batch, seq_new, heads_k, d) = {wanted}, {cache.dtype} on"
            f" {cache.device}"
        )
