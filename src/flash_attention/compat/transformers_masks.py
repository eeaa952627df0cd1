# SPDX-License-Identifier: Apache-2.0
"""Masks of models of transformers: which of their patterns are supported, and what a mask says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError

WITHOUT_EFFECT = {  # patterns that is_causal, sliding_window and padding express
    "causal_mask_function",
    "bidirectional_mask_function",
    "sliding_window_overlay.<locals>.inner_mask",
    "sliding_window_bidirectional_overlay.<locals>.inner_mask",
}
CONJUNCTION = "and_masks.<locals>.and_mask"
TRACED = ("causal_mask_function", "bidirectional_mask_function", "and_mask")
PACKED_UNSAID = "packed sequences in a compiled model: pass cu_seq_lens_q, cu_seq_lens_k"

Read = TypeVar("Read")


def padding_mask(
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    q_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    cache_position: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask for `attention_forward`: None, or which keys are no padding, (batch, keys).

    In a row of packed sequences, the mask numbers them from 1. Keys beyond the end of the mask are
    unused, as in a static cache that is not full. transformers 4.57 passes the places of all
    queries, `cache_position`, instead of their number and the place of the first.

    torch.compile does not know the values of a mask. It therefore keeps every mask, and packed
    sequences need cu_seq_lens. If they have none, but position_ids that start again, an assertion
    ends the run.
    """
    if cache_position is not None:
        q_length, q_offset = len(cache_position), cache_position[0]
    if torch.compiler.is_compiling():
        _check_traced(mask_function, bool(kwargs.get("use_vmap")))
        if attention_mask is None and q_length == kv_length:
            _assert_one_sequence(mask_function, batch_size, kv_length, kwargs.get("device"))
        return None if attention_mask is None else attention_mask[:, -kv_length:]
    packed = _sequences(mask_function, kv_length + kv_offset)
    if packed is not None:
        return packed + 1
    if attention_mask is None:
        seen = kv_length
        if q_length is not None and q_length < kv_length:
            seen = int(q_offset) + q_length - kv_offset
        if not 0 < seen < kv_length:
            return None
        device = kwargs.get("device") if cache_position is None else cache_position.device
        return torch.ones((batch_size, seen), dtype=torch.bool, device=device)
    mask = attention_mask[:, -kv_length:]
    return None if mask.shape[1] == kv_length and bool(mask.all()) else mask


@dataclass(frozen=True)
class Entries:
    """The sequences of a padded tensor."""

    tokens: int  # and padding
    at: tuple[Tensor, ...]  # (row, column) of every token that is no padding
    lengths: Tensor  # int32 (sequences,)
    cu_seqlens: Tensor
    longest: int
    one_per_row: bool
    unbroken: bool  # no row has padding between two tokens
    padded_right: bool  # every row starts with a token, and is unbroken

    @property
    def whole(self) -> bool:
        """Whether there is no padding, and one sequence in each row."""
        return self.one_per_row and len(self.at[0]) == self.tokens

    @classmethod
    def of(cls, mask: Tensor) -> Entries:
        """Read a mask, (batch, keys)."""
        if mask.ndim != 2:
            raise UnsupportedError(
                f"attention_mask has shape {tuple(mask.shape)}; allowed are padding masks (batch,"
                " keys), and no mask of single scores"
            )
        return read_once(mask, "_entries", cls._read)

    @classmethod
    def _read(cls, mask: Tensor) -> Entries:
        """Read a mask. This waits for the device a few times."""
        real = mask != 0
        lengths = real.sum(-1, dtype=torch.int32)
        columns = torch.arange(mask.shape[1], device=mask.device)
        after_first = columns - real.int().argmax(-1, keepdim=True)
        unbroken = (real == ((after_first >= 0) & (after_first < lengths[:, None]))).all()
        right = (real == (columns < lengths[:, None])).all()
        numbers = mask.to(torch.int64)
        facts = torch.stack(((numbers > 1).any(), unbroken, right))
        many, is_unbroken, padded_right = facts.tolist()
        at = torch.nonzero(real, as_tuple=True)
        if many:
            numbers = at[0] * (numbers.amax() + 1) + numbers[at]
            lengths = torch.unique_consecutive(numbers, return_counts=True)[1].to(torch.int32)
        cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        longest = int(lengths.max()) if lengths.numel() else 0
        return cls(
            *(mask.numel(), at, lengths, cu_seqlens, longest),
            one_per_row=not many,
            unbroken=is_unbroken,
            padded_right=padded_right and not many,
        )


def documents_of(position_ids: Tensor | None, batch: int, keys: int) -> Tensor | None:
    """Number the documents in a single row whose position_ids start again, from 1, (1, keys).

    None stands for one document. As for transformers' flash_attention_2, a document starts where
    the positions have their minimum. In a trace and in a CUDA graph, which do not know positions of
    later calls, an assertion ends the run if there are several.
    """
    if position_ids is None or position_ids.ndim != 2 or batch != 1 or position_ids.shape[1] == 1:
        return None
    if torch.compiler.is_compiling() or _is_captured(position_ids):
        torch._assert_async(~_starts(position_ids)[1:].any(), PACKED_UNSAID)
        return None
    documents = read_once(position_ids, "_documents", _read_documents)
    if documents is not None and documents.shape[1] != keys:
        raise UnsupportedError(
            f"position_ids start again in {documents.shape[1]} tokens that have {keys} keys; pass"
            " packed sequences without a cache of earlier tokens, or with an empty one"
        )
    return documents


def _is_captured(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _read_documents(position_ids: Tensor) -> Tensor | None:
    starts = _starts(position_ids)
    return starts.cumsum(0)[None] if bool(starts[1:].any()) else None


def _starts(position_ids: Tensor) -> Tensor:
    """Return whether a document starts at each position of a row."""
    starts = position_ids[0] == position_ids.min()
    return torch.cat((torch.ones_like(starts[:1]), starts[1:]))


def read_once(tensor: Tensor, name: str, read: Callable[[Tensor], Read]) -> Read:
    """Read the values of a tensor, which waits for its device, and keep the result with it until
    they change: all layers of a model get the same mask and the same position_ids.

    Inference tensors do not count their changes, so each layer reads them.
    """
    if tensor.is_inference():
        return read(tensor)
    version = tensor._version
    known: tuple[int, Read] | None = getattr(tensor, name, None)
    if known is None or known[0] != version:
        known = (version, read(tensor))
        setattr(tensor, name, known)
    return known[1]


def _sequences(pattern: Callable[..., Any], length: int) -> Tensor | None:
    """Return the number of each token's sequence if the pattern is one of packed sequences."""
    name = getattr(pattern, "__qualname__", repr(pattern))
    if name in WITHOUT_EFFECT:
        return None
    free = inspect.getclosurevars(pattern).nonlocals if inspect.isfunction(pattern) else {}
    if name == CONJUNCTION:
        found = [_sequences(part, length) for part in free["mask_functions"]]
        return next((part for part in found if part is not None), None)
    if name == "packed_sequence_mask_function.<locals>.inner_mask":
        packed: Tensor = free["packed_sequence_mask"]
        return packed
    if name == "chunked_overlay.<locals>.inner_mask" and length <= free["chunk_size"]:
        return None
    raise _unknown(name, length)


def _check_traced(pattern: Callable[..., Any], custom: bool) -> None:
    """Check a pattern in a trace, where `_sequences` cannot evaluate it."""
    if custom or pattern.__name__ not in TRACED:
        raise _unknown(pattern.__name__, None)


def _assert_one_sequence(
    pattern: Callable[..., Any], batch: int, length: int, device: torch.device | str | None
) -> None:
    """Make the compiled function stop if a token does not see the token before it."""
    rows = torch.arange(batch, device=device)[:, None]
    later = torch.arange(1, length, device=device)[None]
    seen = pattern(rows, torch.zeros_like(rows), later, later - 1)
    torch._assert_async(seen.all(), PACKED_UNSAID)


def _unknown(name: str, length: int | None) -> UnsupportedError:
    over = "" if length is None else f" over {length} keys"
    return UnsupportedError(
        f"the model asks for the attention pattern {name}{over}; allowed are causal, full,"
        ' sliding-window and packed ones: load the model with attn_implementation="sdpa"'
    )
