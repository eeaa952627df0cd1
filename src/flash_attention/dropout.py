# SPDX-License-Identifier: Apache-2.0
"""dropout_mask: which weights a call of `attention` with dropout keeps."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from flash_attention.call.dropout import check_rng_state
from flash_attention.call.options import check_dropout_p
from flash_attention.call.tensors import shown
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.reference.dropout import kept_weights

DIMS = ("batch", "heads", "seq_q", "seq_k")


def dropout_mask(rng_state: Tensor, dropout_p: float, shape: Sequence[int]) -> Tensor:
    """Return which weights of the softmax `attention` keeps, with its `rng_state` and `dropout_p`.

    The mask is computed with torch from its definition: a weight's fate depends on rng_state, the
    sequence, the head, the query and the key, and on nothing else. All kernels agree with it.

    - `rng_state`: int64 (2,), the seed and the offset, on any device.
    - `dropout_p`: the probability with which a weight is dropped, rounded to 1/256.
    - `shape`: (batch, heads, seq_q, seq_k). Queries and keys of packed sequences are counted from
      the first of their own sequence, so that a sequence has the corner of its lengths.

    Returns bool (batch, heads, seq_q, seq_k) on the device of rng_state, True for weights that are
    kept. They are divided by the share of weights that is kept on average, a multiple of 1/256.

    Raises UnsupportedError for arguments that are not of this kind.
    """
    check_dropout_p(dropout_p)
    check_rng_state(rng_state)
    is_whole = isinstance(shape, Sequence) and all(
        isinstance(n, Integral) and not isinstance(n, bool) and n >= 0 for n in shape
    )
    if not is_whole or len(shape) != len(DIMS):
        raise UnsupportedError(
            f"shape is {quoted(shape)}; pass {shown(DIMS)}, four whole numbers from 0 on"
        )
    batch, heads, seq_q, seq_k = map(int, shape)
    kept = torch.empty((batch, heads, seq_q, seq_k), dtype=torch.bool, device=rng_state.device)
    for i in range(batch):
        for h in range(heads):
            of = range(i * heads + h, i * heads + h + 1)
            kept[i, h] = kept_weights(rng_state, dropout_p, of, range(seq_q), range(seq_k))[0]
    return kept
