# SPDX-License-Identifier: Apache-2.0
"""FLASH_ATTENTION_VALIDATE: functions without a parameter `validate` check values on a GPU too."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import UnsupportedError, attention
from flash_attention.compat import flash_attn, values
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from tests.compat.test_kv_cache import MANGLED, PAGE, TABLE, call, empty_cache, new_rows, numbers


@pytest.fixture
def validating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "validates", True)


@pytest.mark.parametrize(("value", "asks"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_environment_asks(
    value: str | None, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(values.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(values.VARIABLE, value)
    assert runpy.run_path(str(values.__file__))["validates"] is asks


def test_values_on_a_gpu_are_read_if_asked_and_not_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there: Any = SimpleNamespace(device=torch.device("cuda"), is_cuda=True)
    assert not values.has_values(there)
    monkeypatch.setattr(values, "validates", True)
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda c=capturing: c)
        assert values.has_values(there) is not capturing
    assert not values.has_values(torch.empty(1, device="meta"))


@pytest.mark.usefixtures("validating")
def test_attention_is_asked_to_validate_unless_it_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def spy(*tensors: Tensor, validate: bool, **options: Any) -> Any:
        asked.append(validate)
        return attention(*tensors, validate=validate, **options)

    monkeypatch.setattr(flash_attn, "attention", spy)
    q, k, v = generate_qkv(1, 4, 2, 16, torch.float32)
    flash_attn.flash_attn_func(q, k, v)
    with FlopCounterMode(display=False):
        flash_attn.flash_attn_func(q, k, v)
    assert asked == [True, False]


@pytest.mark.gpu
@pytest.mark.usefixtures("validating")
@pytest.mark.parametrize("case", MANGLED)
def test_what_does_not_fit_is_refused_on_a_gpu_if_asked(case: str) -> None:
    kind, changed, lengths = MANGLED[case]
    with pytest.raises(UnsupportedError, match=r"cache_seqlens\[1\] is|, and sequence 1 has \d+"):
        call("cuda", kind, changed, lengths)


@pytest.mark.gpu
@pytest.mark.usefixtures("validating")
@pytest.mark.parametrize("new", [0, 2])
def test_lengths_beyond_a_table_on_a_gpu_are_refused_if_asked(new: int) -> None:
    q, k, v = (t.cuda() for t in new_rows(max(new, 1)))
    caches = [t.cuda() for t in empty_cache(12, PAGE)]
    before = [cache.clone() for cache in caches]
    asked: dict[str, Any] = {"k": k, "v": v} if new else {}
    asked |= {"k_cache": caches[0], "v_cache": caches[1], "block_table": TABLE.cuda()}
    room = 4 * PAGE - new

    def step(rows: int) -> Any:
        lengths = numbers(20, rows, 8, device="cuda")
        return flash_attn_with_kvcache(q, **asked, cache_seqlens=lengths)

    with pytest.raises(UnsupportedError, match=rf"cache_seqlens\[1\] is {room + 1}"):
        step(room + 1)
    assert all(map(torch.equal, caches, before))
    assert bool(step(room).isfinite().all())


@pytest.mark.gpu
@pytest.mark.usefixtures("validating")
def test_packed_sequences_on_a_gpu_are_checked_and_graphs_are_captured() -> None:
    q, k, v = (t[0] for t in generate_qkv(1, 12, 2, 64, torch.bfloat16, "cuda"))
    right, wrong = cu_seqlens((5, 7)).cuda(), cu_seqlens((5, 9)).cuda()
    with pytest.raises(UnsupportedError, match="cu_seqlens_k goes from 0 to 14; k has 12 rows"):
        flash_attn_varlen_func(q, k, v, right, wrong, 9, 9)
    wanted = flash_attn_varlen_func(q, k, v, right, right, 9, 9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn_varlen_func(q, k, v, right, right, 9, 9)
    graph.replay()
    torch.testing.assert_close(out, wanted)
