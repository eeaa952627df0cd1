# SPDX-License-Identifier: Apache-2.0
"""Tile counters: who shares one, and that no graph and no allocator of torch's owns them."""

from __future__ import annotations

import ctypes
import gc
import itertools

import pytest
import torch

from flash_attention import attention
from flash_attention.launch import tile_counters
from flash_attention.launch.device import current_stream
from flash_attention.launch.tile_counters import COUNTER_BYTES, tile_counter
from tests.launch.stand_in import Gpus


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    gpus = Gpus()
    gpus.install(monkeypatch)
    return gpus


def test_a_counter_goes_with_a_stream_of_a_device_and_captured_kernels_have_their_own(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tile_counter(0, 5, 2)
    assert (ctypes.c_int32 * 2).from_address(first)[:] == [0, 0]
    assert tile_counter(0, 5, 2) == first
    others = [tile_counter(0, 6, 2), tile_counter(1, 5, 2), tile_counter(0, 5, 3)]
    monkeypatch.setattr(tile_counters, "is_capturing", lambda: True)
    captured = [tile_counter(0, 5, 2), tile_counter(0, 5, 2)]
    assert len({first, *others, *captured}) == 6
    monkeypatch.setattr(tile_counters, "is_capturing", lambda: False)
    assert tile_counter(0, 5, 2) == first
    assert [device for device, _ in gpus.zeros] == [0, 1]
    assert gpus.allocated == []  # nothing of torch's


def test_there_are_always_more_counters(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_counters, "BYTES_AT_ONCE", 4 * COUNTER_BYTES)
    addresses = sorted(tile_counter(0, stream, 2) for stream in range(5))
    assert all(b - a >= 2 * COUNTER_BYTES for a, b in itertools.pairwise(addresses))
    assert gpus.zeros == [(0, 4 * COUNTER_BYTES)] * 3
    tile_counter(0, 0, 100)
    assert gpus.zeros[-1] == (0, 100 * COUNTER_BYTES)


def causal_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A call whose kernel takes tiles from a counter."""
    shape = (2, 2048, 8, 128)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return q, k, v


@pytest.mark.gpu
def test_a_counter_is_made_while_a_graph_is_captured() -> None:
    index = torch.cuda.current_device()
    stream = current_stream(index)
    first = tile_counter(index, stream, 2)
    assert tile_counter(index, stream, 2) == first
    graph = torch.cuda.CUDAGraph()
    tile_counters._counters_of.cache_clear()  # the next counter needs new memory
    with torch.cuda.graph(graph):
        captured = {tile_counter(index, current_stream(index), 2) for _ in range(2)}
        torch.zeros(1, device="cuda")
    assert len(captured) == 2
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_freed_graph_takes_no_counter_with_it() -> None:
    q, k, v = causal_inputs()
    expected = attention(q, k, v, causal=True)
    tile_counters._counters_of.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(q, k, v, causal=True)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
    del graph, captured
    gc.collect()
    torch.cuda.empty_cache()
    overwrite = torch.full((1 << 24,), -1, device="cuda", dtype=torch.int32)
    for _ in range(5):
        assert torch.equal(attention(q, k, v, causal=True), expected)
    assert bool((overwrite == -1).all())


@pytest.mark.gpu
def test_graphs_are_replayed_on_several_streams_at_once() -> None:
    q, k, v = causal_inputs()
    expected = attention(q, k, v, causal=True)
    out = [torch.empty_like(q) for _ in range(6)]
    graphs = []
    for i in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for o in out[2 * i : 2 * i + 2]:
                attention(q, k, v, causal=True, out=o)
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for turn in range(10):
        for o in out:
            o.fill_(torch.nan)
        torch.cuda.synchronize()
        for i, graph in enumerate(graphs):
            with torch.cuda.stream(streams[(i + turn) % 3]):
                graph.replay()
        eager = attention(q, k, v, causal=True)
        torch.cuda.synchronize()
        assert all(torch.equal(o, expected) for o in (*out, eager))


@pytest.mark.gpu
@pytest.mark.parametrize("seq_q", [2048, 1], ids=["prefill", "decode"])
def test_torch_compile_reduces_overhead(seq_q: int) -> None:
    q, k, v = causal_inputs()
    q = q[:, :seq_q].contiguous()

    def model(q: torch.Tensor) -> torch.Tensor:
        return attention(q * 2, k, v, causal=True) + 1

    expected = model(q)
    tile_counters._counters_of.cache_clear()
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(4):
        assert torch.equal(compiled(q), expected)
        assert torch.equal(model(q), expected)
    torch.compiler.reset()
