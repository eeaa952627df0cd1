# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits on a Hopper GPU: bits that repeat, new rows, graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.compat.flash_attn_3 import flash_attn_with_kvcache
from tests.families.sm90.forward.cases_8_bit import E4M3, Case, assert_right

pytestmark = pytest.mark.gpu("sm_90")


@pytest.mark.parametrize("causal", [False, True])
def test_results_have_the_same_bits_in_every_run(causal: bool) -> None:
    for case in (Case(1, 4000, heads=8, batch=3), Case(700, 1000, keywords=(("causal", causal),))):
        call = case.call("cuda")
        first = attention(*call[:3], **call.keywords())
        for _ in range(20):
            assert torch.equal(attention(*call[:3], **call.keywords()), first)


def test_a_cache_of_pages_stores_new_rows_of_8_bits() -> None:
    call = Case(1, 320, batch=3, page=16, used=(300, 1, 77)).call("cuda")
    k, v, used = call.k.clone(), call.v.clone(), call.seqused_k
    assert used is not None
    new_k, new_v = (torch.randn(3, 2, 2, 128, device="cuda").to(E4M3) for _ in "kv")
    factors: dict[str, Any] = {"k_descale": call.k_descale, "v_descale": call.v_descale}
    out: Any = flash_attn_with_kvcache(
        call.q, k, v, new_k, new_v, cache_seqlens=used, page_table=call.block_table, **factors
    )
    after = call._replace(k=k, v=v, seqused_k=used + 2)
    out_again, lse = attention(*after[:3], **after.keywords(), return_lse=True)
    assert torch.equal(out, out_again)
    assert_right(after, out_again, lse)
    assert call.block_table is not None
    page = int(call.block_table[2, 77 // 16])
    assert torch.equal(k[page, 77 % 16].float(), new_k[2, 0].float())


def test_a_graph_replays_decoding() -> None:
    call = Case(1, 2000, heads=8, batch=2).call("cuda")
    out = torch.empty_like(call.q)
    wanted = attention(*call[:3], out=out, **call.keywords()).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(*call[:3], out=out, **call.keywords())
    out.zero_()
    graph.replay()
    assert torch.equal(out, wanted)
