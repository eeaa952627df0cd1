# SPDX-License-Identifier: Apache-2.0
"""Dropout of torch's scaled_dot_product_attention that is routed here."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from flash_attention import dropout_mask
from flash_attention.compat.sdpa import route_sdpa


def test_dropout_is_routed_in_training_too() -> None:
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, 6, 16, generator=random).requires_grad_() for _ in "qkv")
    torch.manual_seed(3)
    state = torch.randint((1 << 63) - 1, (2,))
    kept = dropout_mask(state, 0.5, (2, 2, 6, 6))
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) * kept * 2
    wanted = torch.autograd.grad((weights @ v).square().sum(), (q, k, v))
    torch.manual_seed(3)
    with route_sdpa() as routed:
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    for mine, of_mask in zip(
        torch.autograd.grad(out.square().sum(), (q, k, v)), wanted, strict=True
    ):
        torch.testing.assert_close(mine, of_mask)
    assert (routed.here, routed.to_torch.total()) == (1, 0)
