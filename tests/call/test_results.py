# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from flash_attention.call.results import fill_keyless, new_gradient, new_output, precision_of_lse


def test_an_output_is_like_q_with_the_columns_of_v() -> None:
    q = torch.zeros(2, 4, 8, 64, dtype=torch.bfloat16).transpose(1, 2)
    like = new_output(q, 64)
    assert (like.shape, like.stride(), like.dtype) == (q.shape, q.stride(), q.dtype)
    narrow = new_output(q, 40)
    assert (narrow.shape, narrow.dtype) == ((2, 8, 4, 40), q.dtype)
    assert narrow.is_contiguous()
    assert new_output(q, 40, device="meta").is_meta
    assert new_output(q, 64, device="meta").stride() == q.stride()


def test_rows_without_a_key_have_their_sink_or_nothing() -> None:
    lse, sinks = torch.zeros(2, 3, 5), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert torch.equal(fill_keyless(lse, None), torch.full((2, 3, 5), -torch.inf))
    assert fill_keyless(lse, sinks) is lse
    assert torch.equal(lse, torch.tensor([1.0, 2.0, 3.0])[None, :, None].expand(2, 3, 5))
    packed = fill_keyless(torch.zeros(3, 7), sinks)
    assert torch.equal(packed, torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 7))
    assert not packed.requires_grad


def test_a_gradient_has_the_strides_of_a_dense_tensor_and_contiguous_rows() -> None:
    dense = torch.zeros(2, 3, 4, 8)
    heads_first = torch.zeros(2, 4, 3, 8).transpose(1, 2)
    for tensor in (dense, heads_first):
        gradient = new_gradient(tensor)
        assert (gradient.stride(), gradient.dtype) == (tensor.stride(), tensor.dtype)
    fused = torch.zeros(2, 3, 3, 4, 8)[:, :, 1]
    columns_first = torch.zeros(2, 3, 8, 4).mT
    expanded = torch.zeros(2, 3, 1, 8).expand(2, 3, 4, 8)
    for tensor in (fused, columns_first, expanded):
        gradient = new_gradient(tensor)
        assert gradient.shape == tensor.shape
        assert gradient.is_contiguous()
    assert new_gradient(dense, device="meta").is_meta


def test_the_lse_of_float64_is_float64() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert precision_of_lse(dtype) == torch.float32
    assert precision_of_lse(torch.float64) == torch.float64
