# SPDX-License-Identifier: Apache-2.0
"""A KV cache as flash-attn describes it, converted to arguments of `attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys, Rotary
from flash_attention.call.call import Call, Keywords
from flash_attention.call.checks import check_dense, check_meaning
from flash_attention.call.results import E4M3
from flash_attention.call.tensors import (
    DIMS,
    DTYPES,
    MAX_ROWS,
    Packing,
    TensorView,
    check_no_grad,
    check_shapes,
)
from flash_attention.compat.cache_entries import Entries, check_not_empty
from flash_attention.compat.new_rows import (
    check_memory,
    check_new,
    contiguous_rows,
    counts_of,
    in_pairs,
)
from flash_attention.compat.rotary import check_rotary
from flash_attention.compat.values import has_values
from flash_attention.errors import UnsupportedError, one
from flash_attention.families.padding import needs_padding
from flash_attention.launch.cache_update import update_cache
from flash_attention.launch.plans import Plans, plan_for
from flash_attention.ops import is_traced, lacks_memory
from flash_attention.reference.cache import lengths_of, update_with_torch

_fitting: Plans[bool] = Plans()  # the tensors that fit each other


@dataclass(frozen=True)
class Cache:
    """A KV cache of one row of keys per sequence, or of pages that a table lists.

    With an index alone the cache is treated as paged, and each of its sequences is one page.
    """

    k: Tensor
    v: Tensor
    table: Tensor | None
    index: Tensor | None
    leftpad: Tensor | None  # rows of each sequence before its first key
    table_name: str = "block_table"  # in the caller's function

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor | None,
        cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None,
        table_name: str = "block_table",
    ) -> Cache:
        """Make a cache from the arguments of flash-attn."""
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
        if block_table is not None:
            _check_numbers(table_name, block_table, k_cache, "(batch, pages)")
        if cache_batch_idx is not None:
            _check_numbers("cache_batch_idx", cache_batch_idx, k_cache)
        if cache_leftpad is not None:
            _check_numbers("cache_leftpad", cache_leftpad, k_cache)
            for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
                _check_entries_adjoin(name, tensor)
        return cls(k_cache, v_cache, block_table, cache_batch_idx, cache_leftpad, table_name)

    @property
    def max_keys(self) -> int:
        """The largest number of keys that a sequence can have."""
        rows = self.k.shape[1]
        return rows if self.table is None else rows * self.table.shape[1]

    def attended(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        cache_seqlens: int | Tensor | None,
        rotary: Rotary | None,
        options: Keywords,
        cu_seqlens_k_new: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Store new rows, and return q, k and v for `attention`; the keywords that describe them
        are added to `options`. With `cu_seqlens_k_new` the new rows are packed.

        Nothing is stored if the call is refused. If the new rows of a sequence do not all fit,
        none is stored, and it has no keys.
        """
        call = self._call(q, k, v, cache_seqlens, rotary, options, cu_seqlens_k_new)
        if self.k.is_cuda and self.k.dtype not in (*DTYPES, E4M3):
            raise UnsupportedError(
                f"k_cache is {self.k.dtype}; allowed on a GPU are torch.float16, torch.bfloat16 and"
                f" {E4M3}"
            )
        if not call.needs_update:
            return q, *self._given_keys(call, cache_seqlens, options)
        traced = is_traced(q, self.k, self.v) or lacks_memory(q, self.k, self.v)
        if traced:
            keys = update_with_torch(call)
        else:
            keys = call.empty_keys()
            if call.k is not None:
                check_memory(call)
                self._check_attention(call, keys, options)
            keys = update_cache(call, keys) if self.k.is_cuda else update_with_torch(call)
        return keys.q, *self._described(call, keys, options)

    def _call(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        lengths: int | Tensor | None,
        rotary: Rotary | None,
        options: Keywords,
        starts_new: Tensor | None = None,
    ) -> CacheCall:
        """Make a checked call."""
        new = not (k is v is starts_new is None) or rotary is not None
        if new and (k is None or v is None or lengths is None):
            names = {"k": k, "v": v, "cache_seqlens": lengths}
            missing = ", ".join(name for name, value in names.items() if value is None)
            raise UnsupportedError(
                f"{missing} is missing; to store new keys and values in a cache pass k, v and"
                " cache_seqlens together, and to rotate q and k too"
            )
        starts = options.get("cu_seqlens_q")
        if starts is not None:
            check_dense("cu_seqlens_q", starts, ("batch + 1",))
        self._check_queries(q, starts is not None)
        batch = q.shape[0] if starts is None else len(starts) - 1
        counts = [0] * batch
        if k is not None and v is not None:
            check_new(k, v, self.k, self.v, batch if starts_new is None else None)
            counts = self._new_rows(k, starts_new, batch)
            k, v = contiguous_rows(k), contiguous_rows(v)
        self._check_batch(batch)
        if not (lengths is self.leftpad is self.index is self.table is None):
            self._check_lengths(self.max_keys if lengths is None else lengths, counts)
        q = q if rotary is None else contiguous_rows(q)
        k_cache, v_cache = self.k, self.v
        if k_cache.dtype == E4M3:
            _check_not_rotated(rotary)
            k_cache, v_cache = in_pairs("k_cache", k_cache), in_pairs("v_cache", v_cache)
            k, v = k if k is None else in_pairs("k", k), v if v is None else in_pairs("v", v)
        call = CacheCall(
            *(q, k_cache, v_cache, self.max_keys if lengths is None else lengths, batch, k, v),
            *(self.table, self.index, self.leftpad, rotary),
            *(starts, options.get("max_seqlen_q"), starts_new),
        )
        if rotary is not None:
            check_rotary(call, rotary, values=has_values(self.k))
        return call

    def _check_queries(self, q: Tensor, packed: bool) -> None:
        """Check that q fits the cache, in the words of the caller's function. Tensors like those
        of an earlier call were checked in that call."""
        tensors, kind = (q, self.k, self.v), (packed, q.numel(), self.k.numel())
        if is_traced(*tensors) or _fitting.recent(kind, *tensors) or lacks_memory(*tensors):
            return
        k, v = TensorView.of("k_cache", self.k), TensorView.of("v_cache", self.v)
        check_shapes(TensorView.of("q", q), k, v, Packing(q=packed, paged=True))
        _fitting.note(True, kind, *tensors)

    def _new_rows(self, k: Tensor, starts: Tensor | None, batch: int) -> list[int]:
        """Return the number of new rows of each sequence, as far as it is known without waiting for
        a GPU."""
        if starts is not None:
            _check_numbers("cu_seqlens_k_new", starts, self.k, "(batch + 1,)")
        return counts_of(k, starts, batch, values=has_values(self.k))

    def _check_batch(self, batch: int) -> None:
        described = self.k if self.table is None else self.table
        count = len(described if self.index is None else self.index)
        if count != batch:
            raise UnsupportedError(
                f"the cache is described for {count} sequences; q has {batch}, pass as many"
                f" entries of k_cache, rows of {self.table_name} or numbers in cache_batch_idx"
            )
        if self.leftpad is not None and len(self.leftpad) != batch:
            raise UnsupportedError(
                f"cache_leftpad has {len(self.leftpad)} numbers; pass {batch}, one for each"
                " sequence of q"
            )

    def _check_lengths(self, given: int | Tensor, new: list[int]) -> None:
        """Check the rows in use before the new ones of each sequence. Raises UnsupportedError for
        rows that do not fit, if they are known without waiting for a GPU."""
        batch, most_new = len(new), max(new, default=0)
        if isinstance(given, int):
            self._check_room("cache_seqlens", given, most_new)
        else:
            _check_numbers("cache_seqlens", given, self.k)
            if len(given) != batch:
                raise UnsupportedError(
                    f"cache_seqlens has {len(given)} numbers; pass {batch}, one for each sequence"
                    " of q"
                )
            self._check_room("the least of cache_seqlens", 0, most_new)
            if has_values(given):
                for sequence, (rows, more) in enumerate(zip(given.tolist(), new, strict=True)):
                    self._check_room(f"cache_seqlens[{sequence}]", rows, more)
        check_not_empty(self.k, self.table, new)
        if has_values(self.k):
            lengths = [given] * batch if isinstance(given, int) else given.tolist()
            keys = [rows + more for rows, more in zip(lengths, new, strict=True)]
            pads = [0] * batch if self.leftpad is None else self.leftpad.tolist()
            _check_pads(pads, keys)
            Entries(self.k, self.table, self.index, self.table_name).check(pads, keys)

    def _check_room(self, name: str, rows: int, new_rows: int) -> None:
        room = self.max_keys - new_rows
        if not 0 <= rows <= room:
            new = f" and there are {new_rows} new keys" if new_rows else ""
            more = "" if self.table is None else f", or a {self.table_name} with more pages"
            allowed = f"allowed are 0 to {room}" if room >= 0 else "they do not fit"
            raise UnsupportedError(
                f"{name} is {rows}{new}; the cache has room for {self.max_keys} keys of a"
                f" sequence, {allowed}: pass a longer cache{more}"
            )

    def _check_attention(self, call: CacheCall, keys: CachedKeys, options: Keywords) -> None:
        """Check the call of `attention` that follows, as far as its tensors are passed on as they
        are: `attend` copies others."""
        check_no_grad(Call(call.q, call.k, call.v))  # type: ignore[arg-type]
        asked = options.copy()
        k, v = self._described(call, keys, asked)
        following = Call(keys.q, k, v, **asked)
        check_no_grad(following)  # of its factors
        contiguous = all(t.stride(-1) == 1 for t in following[:3])
        if call.q.is_cuda and contiguous and not needs_padding(keys.q, v):
            plan_for(following)
        else:
            check_meaning(following)

    def _given_keys(
        self, call: CacheCall, lengths: int | Tensor | None, options: Keywords
    ) -> tuple[Tensor, Tensor]:
        """Return k and v if nothing is to be stored or computed."""
        table = self.table if self.index is None else self.index[:, None]
        every = lengths is None and table is None  # dense keys, all in use
        options["seqused_k"] = None if every else lengths_of(call)
        options["block_table"] = table
        return self.k, self.v

    def _described(
        self, call: CacheCall, keys: CachedKeys, options: Keywords
    ) -> tuple[Tensor, Tensor]:
        """Return k and v with the keys that an update found."""
        options["seqused_k"] = keys.used
        if keys.starts is not None:  # each sequence goes up to the first key of the next one
            options["cu_seqlens_k"], options["max_seqlen_k"] = keys.starts, 2 * self.max_keys
            return self.k.flatten(0, 1), self.v.flatten(0, 1)
        if keys.table is not None:
            options["block_table"] = keys.table
            if call.leftpad is None:
                return self.k, self.v
            return self.k.flatten(0, 1)[:, None], self.v.flatten(0, 1)[:, None]
        options["block_table"] = self.table if self.index is None else self.index[:, None]
        return self.k, self.v


def _check_pads(pads: list[int], keys: list[int]) -> None:
    """Check that left padding ends with the keys of a sequence."""
    for sequence, (pad, there) in enumerate(zip(pads, keys, strict=True)):
        if not 0 <= pad <= there:
            which = "negative" if pad < 0 else "more than the keys of the sequence"
            raise UnsupportedError(
                f"cache_leftpad[{sequence}] is {pad}, {which}; allowed are 0 to {there}, as many as"
                " it has by cache_seqlens and with k"
            )


def _check_not_rotated(rotary: Rotary | None) -> None:
    if rotary is not None:
        raise UnsupportedError(
            f"rotary_cos is given, and k_cache is {E4M3}; numbers of 8 bits are not rotated: rotate"
            " q and k in 16 bits, then convert k, and leave rotary_cos and rotary_sin out"
        )


def _check_numbers(name: str, tensor: object, cache: Tensor, shape: str = "(batch,)") -> None:
    """Check that a tensor has contiguous rows of int32 on the device of the cache."""
    number = "an int, or " if name == "cache_seqlens" else ""
    wanted = f"pass {number}a torch.int32 tensor of shape {shape}, batch being that of q"
    if not isinstance(tensor, Tensor):
        raise UnsupportedError(f"{name} is {one(type(tensor).__name__)}; {wanted}")
    if tensor.ndim != len(shape.strip("(,)").split(", ")) or tensor.dtype != torch.int32:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and is {tensor.dtype}; {wanted}"
        )
    if tensor.device != cache.device:
        raise UnsupportedError(
            f"{name} is on {tensor.device}, the cache on {cache.device}; move it with"
            f" {name}.to(k_cache.device)"
        )
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise UnsupportedError(
            f"the last dimension of {name} has stride {tensor.stride(-1)}; it must be contiguous,"
            f" copy it with {name}.contiguous()"
        )


def _check_entries_adjoin(name: str, cache: Tensor) -> None:
    """Check that the sequences of a cache follow each other without gaps: none is copied."""
    entries, rows = cache.shape[:2]
    if entries > 1 and cache.stride(0) != rows * cache.stride(1):
        raise UnsupportedError(
            f"cache_leftpad is given, and the entries of {name} lie {cache.stride(0)} elements"
            f" apart, their {rows} rows take {rows * cache.stride(1)}; pass a cache without gaps,"
            f" {name}.contiguous()"
        )
    if entries * rows > MAX_ROWS:
        raise UnsupportedError(
            f"cache_leftpad is given, and {name} has {entries} entries of {rows} rows; allowed are"
            f" {MAX_ROWS} rows in all, pass a part of the cache"
        )
