# SPDX-License-Identifier: Apache-2.0
"""KV caches as flash-attn describes them reach the MLA kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.call.strict import VARIABLE
from flash_attention.compat import flash_attn_3
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch import strict
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import check_output, cu_seqlens
from tests.families.sm90.mla.cases import FULL, Case

D_V = FULL.d_v


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[KernelConfig]:
    """The configs that calls on the CPU would have on a GPU."""
    configs = []

    class Recorded(Plan):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            configs.append(self.config)

    monkeypatch.setenv(VARIABLE, "sm_90")
    monkeypatch.setattr(strict, "Plan", Recorded)
    return configs


@pytest.mark.parametrize("page_keys", [0, 64])
def test_a_cache_whose_v_is_part_of_k(chosen: list[KernelConfig], page_keys: int) -> None:
    made = Case(2, 128, batch=2, used=(100, 3), page_keys=page_keys, causal=True).make(D_V)
    call = made.call
    out = flash_attn_with_kvcache(
        *(call.q, call.k, call.v),
        cache_seqlens=call.seqused_k,
        block_table=call.block_table,
        causal=True,
    )
    assert chosen == [FULL]
    assert isinstance(out, torch.Tensor)
    made.assert_right(out, None)


def test_new_rows_are_stored_in_both(chosen: list[KernelConfig]) -> None:
    cache = torch.zeros(1, 64, 1, 576, dtype=torch.bfloat16)
    q, new = (torch.randn(1, 2, heads, 576).bfloat16() for heads in (16, 1))
    flash_attn_with_kvcache(
        q, cache, cache[..., :D_V], new, new[..., :D_V], cache_seqlens=5, causal=True
    )
    assert torch.equal(cache[:, 5:7], new)
    assert FULL in chosen


def test_packed_queries_and_new_rows(chosen: list[KernelConfig]) -> None:
    cache = torch.randn(2, 64, 1, 576).bfloat16()
    q, new = (torch.randn(4, heads, 576).bfloat16() for heads in (16, 1))
    starts, lengths = cu_seqlens((3, 1)), torch.tensor([5, 9], dtype=torch.int32)
    out = flash_attn_3.flash_attn_with_kvcache(
        *(q, cache, cache[..., :D_V], new, new[..., :D_V]),
        cache_seqlens=lengths,
        cu_seqlens_q=starts,
        cu_seqlens_k_new=starts,
        max_seqlen_q=3,
        causal=True,
    )
    assert FULL in chosen
    assert torch.equal(torch.cat((cache[0, 5:8], cache[1, 9:10])), new)
    assert isinstance(out, torch.Tensor)
    packed: Any = {"cu_seqlens_q": starts, "max_seqlen_q": 3}
    used = lengths + starts.diff()
    check = check_output(out, q, cache, cache[..., :D_V], seqused_k=used, causal=True, **packed)
    assert check.ok, str(check)


def test_a_cache_with_its_own_v_is_refused(chosen: list[KernelConfig]) -> None:
    made = Case(1, 128, used=(100,)).make(D_V)
    call = made.call
    with pytest.raises(UnsupportedError, match=r"of k: pass v=k\[..., :512\]"):
        flash_attn_with_kvcache(call.q, call.k, call.v.clone(), cache_seqlens=call.seqused_k)


def test_a_traced_call_keeps_v_in_k(chosen: list[KernelConfig]) -> None:
    made = Case(1, 70).make(D_V)

    def traced(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return attention(q, cache, cache[..., :D_V])

    out = torch.compile(traced, backend="aot_eager", fullgraph=True)(made.q, made.k)
    assert chosen == [FULL]
    made.assert_right(out, None)
