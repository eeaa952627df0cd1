# SPDX-License-Identifier: Apache-2.0
"""The functions of flash-attn's bert_padding: they convert between padded and packed sequences.

They consist of operations of torch, so they have gradients. A function that reads a mask waits for
the mask's device.
"""

from __future__ import annotations

from numbers import Integral

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.call.checks import check_dense
from flash_attention.errors import UnsupportedError, quoted

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of `input` with these indices."""
    return input[indices]


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of `input` with these indices, and `input` itself."""
    return input[indices], input


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return a tensor of `first_axis_dim` rows: `values` at the indices, zeros elsewhere."""
    rows = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return rows.index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack the unpadded rows of a (batch, seq, ...) tensor.

    - `hidden_states`: the padded tensor.
    - `attention_mask`: (batch, seq), nonzero for rows to keep.
    - `unused_mask`: (batch, seq), nonzero for further rows to keep.

    Returns the rows (total, ...), their indices in the flattened input, cu_seqlens, the length of
    the longest sequence, and the number of rows of each sequence that `attention_mask` keeps.
    """
    _check_mask("attention_mask", attention_mask, hidden_states)
    if unused_mask is not None:
        _check_mask("unused_mask", unused_mask, hidden_states)
    shown = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = shown.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_packed(hidden_states, shown, lengths), used)


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Pack a (batch, seq, ...) tensor whose batch rows hold several sequences each.

    A row of `attention_mask_in_length`, (batch, seq), starts with the lengths of the sequences in
    that row, and the rest of it is 0. Returns the first four results of `unpad_input`.
    """
    mask = attention_mask_in_length
    _check_mask("attention_mask_in_length", mask, hidden_states)
    columns = torch.arange(mask.shape[1], device=mask.device)
    lengths = mask[mask != 0].to(torch.int32)
    return _packed(hidden_states, columns < mask.sum(-1, keepdim=True), lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Undo `unpad_input`: return a (batch, seqlen, ...) tensor with zeros in the padding."""
    check_dense("hidden_states", hidden_states, ("total", "..."))
    check_dense("indices", indices, ("total",))
    if indices.shape != hidden_states.shape[:1]:
        raise UnsupportedError(
            f"indices has shape {tuple(indices.shape)}, hidden_states {tuple(hidden_states.shape)};"
            " pass an index for every row, as unpad_input returns them"
        )
    for name, size in (("batch", batch), ("seqlen", seqlen)):
        if not torch.compiler.is_compiling() and (not isinstance(size, Integral) or size < 0):
            raise UnsupportedError(f"{name} is {quoted(size)}; pass the size before unpad_input")
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.view(batch, seqlen, *rows.shape[1:])


def _check_mask(name: str, mask: Tensor, hidden_states: Tensor) -> None:
    check_dense("hidden_states", hidden_states, ("batch", "seq", "..."))
    check_dense(name, mask, ("batch", "seq"))
    if mask.ndim != 2 or mask.shape != hidden_states.shape[:2]:
        raise UnsupportedError(
            f"{name} has shape {tuple(mask.shape)}, hidden_states {tuple(hidden_states.shape)};"
            f" {name} is (batch, seq), the first two dimensions of hidden_states"
        )


def _packed(
    hidden_states: Tensor, shown: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = shown.flatten().nonzero().flatten()
    cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cu_seqlens, int(lengths.max())
