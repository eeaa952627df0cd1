# SPDX-License-Identifier: Apache-2.0
"""Calls are counted once, if they were computed here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flash_attention import UnsupportedError
from flash_attention.compat import calls
from flash_attention.compat.flash_attn import flash_attn_func
from flash_attention.compat.flash_attn_3 import flash_attn_func as flash_attn_3_func
from flash_attention.compat.transformers import attention_forward


@pytest.fixture(autouse=True)
def _none_before() -> Iterator[None]:
    calls.clear()
    yield
    calls.clear()


def test_a_call_counts_once() -> None:
    q = torch.randn(1, 4, 2, 16, requires_grad=True)
    flash_attn_func(q, q, q)
    assert calls == {"flash_attn": 1}
    eight = q.detach().to(torch.float8_e4m3fn)
    factor = torch.ones(1, 2, requires_grad=True)  # which has no gradient: it is computed alone
    flash_attn_3_func(eight, eight, eight, q_descale=factor)
    assert calls == {"flash_attn": 2}
    rows = q.transpose(1, 2)
    attention_forward(torch.nn.Module(), rows, rows, rows, None, is_causal=True)
    assert calls == {"flash_attn": 2, "transformers": 1}


def test_refused_calls_do_not_count() -> None:
    q, k = torch.randn(1, 4, 2, 16), torch.randn(1, 4, 3, 16)
    with pytest.raises(UnsupportedError, match="heads"):
        flash_attn_func(q, k, k)
    rows, keys = q.transpose(1, 2), k.transpose(1, 2)
    with pytest.raises(UnsupportedError, match="heads"):
        attention_forward(torch.nn.Module(), rows, keys, keys, None, is_causal=True)
    assert not calls
