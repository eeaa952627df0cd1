# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from flash_attention.call.results import fill_keyless, new_output


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
