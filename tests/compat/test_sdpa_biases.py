# SPDX-License-Identifier: Apache-2.0
"""Causal masks of torch.nn.attention.bias, in torch's scaled_dot_product_attention and here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from flash_attention.compat.sdpa import route_sdpa, scaled_dot_product_attention
from flash_attention.errors import UnsupportedError
from tests.compat.test_sdpa import close, tensors


@pytest.mark.parametrize(("seq_q", "seq_k"), [(6, 6), (3, 8), (1, 5), (8, 3)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
def test_causal_biases_of_torch_are_masks(make: Any, seq_q: int, seq_k: int) -> None:
    q, k, v = tensors(seq_q, seq_k, heads=4)
    bias = make(seq_q, seq_k)
    options: dict[str, Any] = {"scale": 0.7, "enable_gqa": True}
    seen = bias._materialize()
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    wanted = F.scaled_dot_product_attention(q, k, v, mask, **options).nan_to_num()
    close(scaled_dot_product_attention(q, k, v, bias, **options), wanted)
    close(scaled_dot_product_attention(q[0], k[0], v[0], bias, **options), wanted[0])
    with route_sdpa(strict=True) as routed:
        close(F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options), wanted)
    assert routed.here == 1


def test_a_causal_bias_is_of_these_lengths_and_the_only_mask() -> None:
    q, k, v = tensors(3, 8)
    with pytest.raises(UnsupportedError, match="of 4 queries and 8 keys, query and key have 3 and"):
        scaled_dot_product_attention(q, k, v, causal_lower_right(4, 8))
    with pytest.raises(UnsupportedError, match="is_causal is True; pass one of the two"):
        scaled_dot_product_attention(q, k, v, causal_lower_right(3, 8), is_causal=True)


def test_a_causal_bias_can_be_compiled() -> None:
    q, k, v = tensors(3, 8)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, causal_lower_right(q.shape[2], k.shape[2]))

    torch._dynamo.reset()
    close(torch.compile(function, backend="aot_eager")(q, k, v), function(q, k, v))
