# SPDX-License-Identifier: Apache-2.0
"""The functions of flash-attn's bert_padding: padded tensors to packed ones and back.

All are torch's own operations, so they have gradients. What reads a mask waits for its device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """The rows of `input` that the indices name."""
    return input[indices]


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of `input` that the indices name, and `input`."""
    return input[indices], input


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """`first_axis_dim` rows: `values` where the indices say, zeros elsewhere."""
    rows = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return rows.index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs the rows of a (batch, seq, ...) tensor that either mask, (batch, seq), does not hide.

    Returns the rows, (total, ...), their places in the flattened input, cu_seqlens, the length of
    the longest sequence, and how many rows of each sequence `attention_mask` shows.
    """
    shown = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = shown.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_packed(hidden_states, shown, lengths), used)


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Packs rows that hold several sequences each; a row of the mask begins with their lengths,
    and is 0 behind them. Returns what `unpad_input` does, but the last."""
    mask = attention_mask_in_length
    columns = torch.arange(mask.shape[1], device=mask.device)
    lengths = mask[mask != 0].to(torch.int32)
    return _packed(hidden_states, columns < mask.sum(-1, keepdim=True), lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of `unpad_input`: (batch, seqlen, ...), zeros where no row is."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.view(batch, seqlen, *rows.shape[1:])


def _packed(
    hidden_states: Tensor, shown: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = shown.flatten().nonzero().flatten()
    cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cu_seqlens, int(lengths.max())
