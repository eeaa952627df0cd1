# SPDX-License-Identifier: Apache-2.0
"""Problem: what a call computes, without its tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call, Window
from flash_attention.call.features import Features, MaskKind
from flash_attention.call.results import BLOCK_DIMS, E4M3, output_dtype
from flash_attention.call.tensors import MAX_ROWS, OF_QUERIES, TensorView
from flash_attention.call.transposed import has_transposed_v
from flash_attention.program.bias import Bias
from flash_attention.program.nodes import Program
from flash_attention.program.order import with_signs

HEAD_ALIGNMENT = 128  # bytes of a swizzled row in shared memory


@dataclass(frozen=True)
class Problem:
    """The shapes, the element type, the mask and the scale of a call, independent of the kernel.

    Query i is aligned with key i + seq_k - seq_q. With `causal` it sees the keys up to that one.
    With `window` it sees the keys from window[0] before that one to window[1] after it. Only one of
    the two is set.
    """

    batch: int
    seq_q: int  # of the longest sequence
    seq_k: int
    heads: int
    heads_k: int  # heads of k and v; heads is a multiple of it
    d_head: int  # head dimension of q and k
    d_v: int
    dtype: torch.dtype
    softmax_scale: float
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float = 0.0  # 0 means none
    dropout_p: float = 0.0  # 0 means none
    sinks: bool = False
    total_q: int | None = None  # rows of a packed q, or None if q has a batch dimension
    total_k: int | None = None
    seqused_k: bool = False
    page_keys: int = 0  # keys per page of a paged KV cache; 0 if it is not paged
    pages: int = 0  # pages of k and of v
    aligned_heads: bool = True  # heads of paged k and v are multiples of 128 bytes apart
    table_stride: int = 0  # elements from one row of the block table to the next
    out_dtype: torch.dtype | None = None  # of the output, if q, k and v are e4m3
    kv_dtype: torch.dtype | None = None  # of k and v, if it is not that of q
    descale_strides: tuple[tuple[str, tuple[int, ...]], ...] = ()  # of the given factors, by name
    block_descales: bool = False  # k_descale and v_descale have factors for blocks of keys
    v_transposed: bool = False  # the keys of v are contiguous, and not its columns
    batch_invariant: bool = False  # the bits of a row do not depend on other rows
    program: Program | None = None  # of a user's score and mask functions
    bounds_bytes: int = 0  # memory for bounds of the tensors that they capture
    bias: Bias | None = None  # a tensor that scores read at every query and key
    return_max: bool = False  # the largest score of every head is returned
    least_queries: int = 0  # sequences with fewer are left to another kernel
    most_queries: int = 0  # sequences with more are, unless it is 0

    @classmethod
    def of(cls, call: Call) -> Problem:
        """Make the problem of a call with dense tensors, packed sequences or a paged KV cache."""
        q, k, v = call[:3]
        rows_q, heads, d_head = q.shape[-3:]
        rows_k, heads_k, _ = k.shape[-3:]
        pages = page_keys = table_stride = 0
        aligned_heads = True
        if call.block_table is not None:
            pages, page_keys = k.shape[:2]
            rows_k = page_keys * call.block_table.shape[1]
            if call.max_seqlen_k is not None:
                rows_k = min(rows_k, int(call.bound_of_pages() or 0))
            table_stride = call.block_table.stride(0)
            aligned_heads = all(
                heads_k == 1 or x.stride(2) * x.element_size() % HEAD_ALIGNMENT == 0 for x in (k, v)
            )
        packed_q, packed_k = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None
        batch = q.shape[0] if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1
        scale = d_head**-0.5 if call.softmax_scale is None else float(call.softmax_scale)
        causal, window = normalised_mask(call.causal, call.window, rows_q, rows_k)
        return cls(
            batch=batch,
            seq_q=int(call.max_seqlen_q or 0) if packed_q else rows_q,
            seq_k=int(call.max_seqlen_k or 0) if packed_k else rows_k,
            heads=heads,
            heads_k=heads_k,
            d_head=d_head,
            d_v=v.shape[-1],
            dtype=q.dtype,
            softmax_scale=scale,
            causal=causal,
            window=window,
            softcap=float(call.softcap),
            dropout_p=float(call.dropout_p),
            sinks=call.sinks is not None,
            total_q=rows_q if packed_q else None,
            total_k=rows_k if packed_k else None,
            seqused_k=call.seqused_k is not None,
            page_keys=page_keys,
            pages=pages,
            aligned_heads=aligned_heads,
            table_stride=table_stride,
            out_dtype=output_dtype(q, call.out) if q.dtype == E4M3 else None,
            kv_dtype=None if k.dtype == q.dtype else k.dtype,
            descale_strides=tuple(
                (name, _descale_strides(factor)) for name, factor in call.descales().items()
            ),
            block_descales=any(
                factor.ndim == len(BLOCK_DIMS) for factor in call.descales().values()
            ),
            v_transposed=has_transposed_v(call),
            batch_invariant=bool(call.batch_invariant),
            program=_program_of(call, causal or (window is not None and window[1] == 0)),
            bounds_bytes=0 if call.function is None else call.function.bounds_bytes,
            bias=None if call.function is None else call.function.bias,
            return_max=bool(call.return_max),
        )

    def resized(self, call: Call) -> Problem | None:
        """Make the problem of a call that differs from this problem's in lengths alone, as
        `Call.kind_and_tensors` says. It is None if its lengths do not fit together, or if there is
        nothing to compute. It is a tenth of the work of `of`, and of the checks."""
        q, k, v, out, _, starts_q, starts_k, used, _, table, _, k_descale, _ = call[:13]
        longest_q, longest_k = call.max_seqlen_q, call.max_seqlen_k
        if not (_is_longest(longest_q, starts_q) and _is_longest(longest_k, starts_k, table)):
            return None
        new = vars(self).copy()
        # Kin have the same sizes apart from lengths, and torch counts elements the fastest.
        of_q, of_k, keys = self.heads, self.heads_k, self.seq_k
        if starts_q is None:
            of_q *= self.seq_q
        rows_q = batch = q.numel() // (of_q * self.d_head)
        if starts_q is not None:
            batch = starts_q.numel() - 1
            new["total_q"], new["seq_q"] = rows_q, longest_q
        if starts_k is None:
            of_k *= self.page_keys or keys
        rows_k = batch_k = k.numel() // (of_k * self.d_head)
        if table is not None:
            batch_k, width = table.shape
            keys = self.page_keys * width
            new["pages"], new["table_stride"] = rows_k, table.stride()[0]
        elif starts_k is not None:
            batch_k, keys = starts_k.numel() - 1, longest_k or 0
            new["total_k"] = rows_k
        if not (
            0 < batch == batch_k
            and (used is None or used.numel() == batch)
            and 0 < rows_q <= MAX_ROWS
            and 0 < rows_k <= MAX_ROWS
            and 0 < keys <= MAX_ROWS
            and v.numel() == rows_k * of_k * self.d_v
            and (out is None or out.numel() == rows_q * of_q * self.d_v)
            and (k_descale is None or _are_factors_of(call, batch))
        ):
            return None
        if table is not None and longest_k is not None:
            keys = min(keys, call.bound_of_pages() or 0)
        new["batch"], new["seq_k"] = batch, keys
        if self.window is not None:
            rows = self.seq_q if starts_q is None else rows_q
            new["window"] = normalised_mask(
                call.causal, call.window, rows, keys if starts_k is None else rows_k
            )[1]
        return self._changed(**new)

    @property
    def described(self) -> dict[str, Any]:
        """The fields by name, element types as text."""
        names = ("dtype", "out_dtype", "kv_dtype")
        return asdict(self) | {name: (d := getattr(self, name)) and str(d) for name in names}

    def __str__(self) -> str:
        heads = f"{self.heads} heads"
        if self.heads_k != self.heads:
            heads += f" ({self.heads_k} of k and v)"
        width = f"d {self.d_head}"
        if self.d_v != self.d_head:
            width += f" ({self.d_v} of v)"
        longest = "up to " if self.per_batch else ""
        words = {
            "causal": self.causal,
            f"window {self.window}": self.window is not None,
            f"softcap {self.softcap:g}": self.softcap > 0,
            f"dropout {self.dropout_p:g}": self.dropout_p > 0,
            "sinks": self.sinks,
            f"pages of {self.page_keys} keys": self.page_keys > 0,
            "v transposed": self.v_transposed,
            "batch-invariant": self.batch_invariant,
            "a score or mask function": self.program is not None,
            "maxima": self.return_max,
        }
        features = "".join(f", {word}" for word, on in words.items() if on)
        dtype = str(self.dtype).removeprefix("torch.")
        if self.kv_dtype is not None:
            dtype += f" (k and v {str(self.kv_dtype).removeprefix('torch.')})"
        return (
            f"batch {self.batch}, {longest}{self.seq_q} x {self.seq_k} queries and keys,"
            f" {heads}, {width}, {dtype}{features}"
        )

    @property
    def features(self) -> Features:
        """The features that the problem requires of a kernel."""
        mask = MaskKind.CAUSAL if self.causal else MaskKind.WINDOW if self.window else MaskKind.FULL
        return Features(
            *(mask, self.softcap > 0, self.per_batch),
            page_keys=self.page_keys,
            sinks=self.sinks,
            block_descales=self.block_descales,
            dropout=self.dropout_p > 0,
            program=self.program,
            max_score=self.return_max,
            least_queries=self.least_queries,
            most_queries=self.most_queries,
        )

    def shared(self, few: int) -> tuple[Problem, Problem]:
        """Return what each of two kernels computes of the same tensors: the sequences with up to
        `few` queries, and those with more."""
        upto = self._changed(seq_q=min(few, self.seq_q), most_queries=few)
        return upto, self._changed(least_queries=few + 1)

    def _changed(self, **changes: Any) -> Problem:
        """Return the problem with other values, as `replace` does, in a tenth of its time."""
        made = object.__new__(type(self))
        object.__setattr__(made, "__dict__", vars(self) | changes)
        return made

    @property
    def is_shared(self) -> bool:
        """Whether another kernel computes some of the sequences."""
        return self.least_queries > 0 or self.most_queries > 0

    @property
    def most_sequences(self) -> int:
        """How many sequences are computed at most."""
        if not self.least_queries or self.total_q is None:
            return self.batch
        return max(min(self.batch, self.total_q // self.least_queries), 1)

    @property
    def has_mask_function(self) -> bool:
        """Whether a user's function says which keys a query sees."""
        return self.program is not None and self.program.mask is not None

    @property
    def output_dtype(self) -> torch.dtype:
        """The element type of the output."""
        return self.out_dtype or self.dtype

    @property
    def kv_8_bit(self) -> bool:
        """Whether k and v are e4m3."""
        return (self.kv_dtype or self.dtype) == E4M3

    @property
    def per_batch(self) -> bool:
        """Whether sequences may differ in length."""
        return self.total_q is not None or self.total_k is not None or self.seqused_k

    @property
    def heads_per_kv(self) -> int:
        """The number of heads of q that share one head of k and v."""
        return self.heads // self.heads_k if self.heads_k else 1

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """(batch, heads, seq_q), or (heads, total_q) if q is packed."""
        if self.total_q is not None:
            return self.heads, self.total_q
        return self.batch, self.heads, self.seq_q

    @property
    def first_sizes(self) -> tuple[int, int]:
        """The first sizes of q and of k, as they are given: rows, pages or sequences."""
        of_k = self.pages if self.page_keys else self.batch
        return (
            self.batch if self.total_q is None else self.total_q,
            of_k if self.total_k is None else self.total_k,
        )

    def num_tiles(self, rows: int) -> int:
        """Count the tiles of `rows` rows of one head. For packed sequences it is an upper bound."""
        of_each = self.batch * -(-self.seq_q // rows)
        if self.total_q is not None:
            of_each = min(of_each, self.total_q // rows + self.batch)
        return of_each * self.heads

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute: no output, or no key that a query sees."""
        rows_q = self.seq_q if self.total_q is None else self.total_q
        rows_k = self.seq_k if self.total_k is None else self.total_k
        no_pages = self.page_keys > 0 and self.pages == 0
        return no_pages or 0 in (self.batch, rows_q, rows_k, self.heads)


def _program_of(call: Call, causal: bool) -> Program | None:
    """The program of a call's function, in which distances have the sign that a mask gives them."""
    if call.function is None:
        return None
    cached = call.seqused_k is not None or call.block_table is not None
    packed = call.cu_seqlens_q is not None or call.cu_seqlens_k is not None
    # A function counts queries so that a query is at its own key.
    aligned = cached or (not packed and call.q.shape[1] == call.k.shape[1])
    return with_signs(call.function.program, causal and aligned)


def _is_longest(length: object, starts: Tensor | None, table: Tensor | None = None) -> bool:
    """Whether the length of the longest sequence is given where sequences are packed, and nowhere
    but there and for pages, and is neither 0 nor too large."""
    if length is None:
        return starts is None
    is_asked = starts is not None or table is not None
    return is_asked and type(length) is int and 0 < length <= MAX_ROWS


def _are_factors_of(call: Call, batch: int) -> bool:
    return all(f.ndim < 2 or f.shape[0] == batch for f in call.descales().values())


def resized_view(view: TensorView, problem: Problem) -> TensorView:
    """Return the view, with a batch dimension, that a tensor has in a problem which differs in
    lengths alone from the one that it was viewed for."""
    is_of_q = view.name in OF_QUERIES
    size = problem.first_sizes[0 if is_of_q else 1]
    is_packed = (problem.total_q if is_of_q else problem.total_k) is not None
    shape = (1, size, *view.shape[2:]) if is_packed else (size, *view.shape[1:])
    return view if shape == view.shape else replace(view, shape=shape)


def _descale_strides(descale: Tensor) -> tuple[int, ...]:
    """Return the strides of a (batch, heads_k) or (batch, heads_k, blocks) tensor; zeros if it has
    one number for all."""
    return descale.stride() if descale.ndim > 1 else (0, 0)


def normalised_mask(
    causal: bool, window: Window | None, rows_q: int, rows_k: int
) -> tuple[bool, tuple[int, int] | None]:
    """Return whether a mask is causal, and its window if it is neither causal nor full.

    No sequence has more than `rows_q` queries and `rows_k` keys. A side with no limit, or with a
    wider one, gets the smallest limit that hides no key.
    """
    left, right = (
        None if side is None or side == -1 else int(side) for side in window or (None, None)
    )
    if causal:
        right = 0
    if left is None and right in (None, 0):
        return right == 0, None
    left = rows_k if left is None else min(left, rows_k)
    return False, (left, rows_q if right is None else min(right, rows_q))
