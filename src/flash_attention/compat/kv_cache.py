# SPDX-License-Identifier: Apache-2.0
"""A KV cache as flash-attn describes it, converted to arguments of `attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from flash_attention.call.call import Call, Keywords
from flash_attention.call.checks import check_dense, check_meaning
from flash_attention.call.tensors import DIMS, check_no_grad
from flash_attention.errors import UnsupportedError
from flash_attention.ops import is_traced, lacks_memory


@dataclass(frozen=True)
class Cache:
    """A KV cache of one row of keys per sequence, or of pages that a block table lists.

    With cache_batch_idx the cache is treated as paged, and each of its sequences is one page.
    """

    k: Tensor
    v: Tensor
    table: Tensor | None
    leftpad: Tensor | None  # rows of each sequence before its first key

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor | None,
        cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None,
    ) -> Cache:
        """Make a cache from the arguments of flash-attn."""
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
        for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
            check_dense(name, tensor)
            if tensor.ndim != len(DIMS):
                raise UnsupportedError(
                    f"{name} has shape {tuple(tensor.shape)}; it must be (batch, seq_cache,"
                    " heads_k, d), or with a table (pages, page_size, heads_k, d)"
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
            if len(cache_leftpad) != len(k_cache):
                raise UnsupportedError(
                    f"cache_leftpad has {len(cache_leftpad)} numbers; pass {len(k_cache)}, one for"
                    " each entry of k_cache"
                )
            for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
                _check_entries_adjoin(name, tensor)
        return cls(k_cache, v_cache, table, cache_leftpad)

    @property
    def max_keys(self) -> int:
        """The largest number of keys that a sequence can have."""
        rows = self.k.shape[1]
        return rows if self.table is None else rows * self.table.shape[1]

    def lengths(self, given: int | Tensor | None, batch: int, new: Tensor | None) -> Tensor | None:
        """Return the number of rows in use of each sequence, before `new` rows are stored. Raises
        UnsupportedError for rows that do not fit, if they are known without waiting for a GPU."""
        if given is None:
            return None
        new_rows = 0 if new is None else _new_rows(new)
        described = len(self.k if self.table is None else self.table)
        if described != batch:
            raise UnsupportedError(
                f"the cache is described for {described} sequences; q has {batch}, pass as many"
                " entries of k_cache, rows of block_table or numbers in cache_batch_idx"
            )
        if isinstance(given, int):
            self._check_room("cache_seqlens", given, new_rows)
            return torch.full((batch,), given, dtype=torch.int32, device=self.k.device)
        _check_numbers("cache_seqlens", given)
        if len(given) != batch or given.device != self.k.device:
            raise UnsupportedError(
                f"cache_seqlens has {len(given)} numbers on {given.device}; pass {batch}, one for"
                f" each sequence of q, on {self.k.device}"
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

    def append(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        lengths: Tensor | None,
        options: Keywords,
    ) -> Tensor:
        """Store new rows after those in use, and return the new numbers of rows in use.

        Nothing is stored if `check_meaning` refuses the call. If the new rows of a sequence do not
        all fit, none is stored, and its number is 0.
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
        if not (is_traced(q, k, v) or lacks_memory(q, k, v)):
            check_no_grad(Call(q, k, v))
            asked = options.copy()
            check_meaning(Call(q, *self.described(asked, lengths), **asked))
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
            # Rows that do not fit have no location of their own in the cache. They repeat what
            # a sequence that fits stores, or, if none does, what is there.
            source = torch.where(fits, torch.arange(batch, device=fits.device), fits.int().argmax())
            at, k, v, keep = (at[0][source], at[1][source]), k[source], v[source], fits.any()
        for new, cache in ((k, self.k), (v, self.v)):
            cache[at] = torch.where(keep, new, cache[at])
        return torch.where(fits, lengths + new_rows, 0)

    def _places(self, lengths: Tensor, new_rows: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the page (or sequence) of the cache and the row in it of each new row, (batch,
        seq_new), clamped to the cache; and which sequences did not need clamping."""
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
        """Return k and v for `attention`, and add the keywords that describe them to `options`."""
        if self.leftpad is not None:
            return self._packed(options, self.leftpad, lengths)
        if self.table is not None and lengths is None:
            lengths = torch.full_like(self.table[:, 0], self.max_keys)
        options["seqused_k"], options["block_table"] = lengths, self.table
        return self.k, self.v

    def _packed(
        self, options: Keywords, leftpad: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Describe the cache as packed sequences, each up to the first key of the next one."""
        batch, rows = self.k.shape[:2]
        starts = torch.arange(batch + 1, dtype=torch.int32, device=leftpad.device) * rows
        starts[:-1] += leftpad
        used = (rows if lengths is None else lengths) - leftpad
        if has_values(used) and bool((wrong := (leftpad < 0) | (used < 0)).any()):
            sequence = int(wrong.int().argmax())
            first = int(leftpad[sequence])
            which = "negative" if first < 0 else "more than the keys of the sequence, cache_seqlens"
            raise UnsupportedError(
                f"cache_leftpad[{sequence}] is {first}, {which}; allowed are 0 to as many as the"
                " sequence has keys"
            )
        options["cu_seqlens_k"], options["max_seqlen_k"] = starts, 2 * rows
        options["seqused_k"] = used.clamp_(min=0)  # negative if new keys did not fit
        return self.k.flatten(0, 1), self.v.flatten(0, 1)


def check_inference(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Check that q is a dense tensor, and that no gradient is expected: a cache has none."""
    check_dense("q", q)
    check_no_grad(Call(q, k_cache, v_cache))


def has_values(numbers: Tensor) -> bool:
    """Whether the values can be read without waiting for a device."""
    return numbers.device.type == "cpu" and not (
        torch.compiler.is_compiling() or isinstance(numbers, FakeTensor)
    )


def _new_rows(new: Tensor) -> int:
    """Return the number of new rows of each sequence."""
    check_dense("k", new)
    if new.ndim != len(DIMS):
        raise UnsupportedError(
            f"k has shape {tuple(new.shape)}; new keys are (batch, seq_new, heads_k, d)"
        )
    return new.shape[1]


def _check_numbers(name: str, tensor: object, shape: str = "(batch,)") -> None:
    """Check that a tensor has an int32 for each sequence of q."""
    number = "an int, or " if name == "cache_seqlens" else ""
    wanted = f"pass {number}a torch.int32 tensor of shape {shape}, batch being that of q"
    if not isinstance(tensor, Tensor):
        raise UnsupportedError(f"{name} is a {type(tensor).__name__}; {wanted}")
    if tensor.ndim != shape.count(" ") + 1 or tensor.dtype != torch.int32:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and is {tensor.dtype}; {wanted}"
        )


def _check_entries_adjoin(name: str, cache: Tensor) -> None:
    """Check that the sequences of a cache follow each other without gaps: none is copied."""
    batch, rows = cache.shape[:2]
    if batch > 1 and cache.stride(0) != rows * cache.stride(1):
        raise UnsupportedError(
            f"cache_leftpad is given, and the entries of {name} lie {cache.stride(0)} elements"
            f" apart, their {rows} rows take {rows * cache.stride(1)}; pass a cache without gaps,"
            f" {name}.contiguous()"
        )


def _check_new(name: str, new: Tensor, cache: Tensor, size: tuple[int, int]) -> None:
    """Check that new rows have the heads, the head dimension and the dtype of the cache."""
    check_dense(name, new)
    wanted = (*size, *cache.shape[2:])
    if (tuple(new.shape), new.dtype, new.device) != (wanted, cache.dtype, cache.device):
        raise UnsupportedError(
            f"{name} has shape {tuple(new.shape)} and is {new.dtype} on {new.device}; to be stored"
            f" in {name}_cache it must be (batch, seq_new, heads_k, d) = {wanted}, {cache.dtype} on"
            f" {cache.device}"
        )
