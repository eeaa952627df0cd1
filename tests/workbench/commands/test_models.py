# SPDX-License-Identifier: Apache-2.0
"""The words of a model become the call that its attention makes."""

from __future__ import annotations

import torch

from flash_attention.call.checks import check_call
from flash_attention.call.results import E4M3
from flash_attention_workbench.commands.models import read_model


def test_every_word_reaches_the_call() -> None:
    call = read_model("heads=64 heads_k=8 d=64 page=32 window=128 softcap=30 dtype=fp16 sinks")
    problem, _ = check_call(call, torch.device("cpu"))
    assert (problem.heads, problem.heads_k, problem.d_head) == (64, 8, 64)
    assert (problem.page_keys, problem.softcap, problem.sinks) == (32, 30.0, True)
    assert (problem.dtype, problem.total_q, problem.seqused_k) == (torch.float16, 1, True)
    assert call.window == (127, 0)
    assert call.causal


def test_caches_of_8_bits_have_factors() -> None:
    cache = read_model("heads=8 heads_k=8 d=128 page=64 kv=e4m3")
    assert (cache.q.dtype, cache.k.dtype, cache.v.dtype) == (torch.bfloat16, E4M3, E4M3)
    assert set(cache.descales()) == {"k_descale", "v_descale"}
    every = read_model("heads=8 heads_k=8 d=128 page=64 dtype=e4m3")
    assert set(every.descales()) == {"q_descale", "k_descale", "v_descale"}
