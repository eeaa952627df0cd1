# SPDX-License-Identifier: Apache-2.0
"""Kept scratch: which kernels share it, and which have memory of their own."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.call.call import Call
from flash_attention.errors import LaunchError
from flash_attention.launch import driver, tile_counters
from flash_attention.launch import kept_scratch as kept
from flash_attention.launch import launcher as launching
from flash_attention.launch.device import current_stream
from flash_attention.launch.kept_scratch import LEAST_BYTES, kept_scratch
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
from tests.launch.calls import DYNAMIC, HOPPER, grouped
from tests.launch.stand_in import STREAMS, Gpus


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    made.install(monkeypatch)
    return made


def split_call(seq_k: int = 300, heads_k: int = 2) -> tuple[Plan, Call]:
    """A call whose keys are split, and its plan: one kernel with partial results."""
    q, k, v = grouped(seq_q=2, seq_k=seq_k, heads=heads_k, heads_k=heads_k)
    call = Call(q, k, v, torch.zeros_like(q), split_keys=128)
    return Plan(call, HOPPER), call


def launched(plan: Plan, call: Call, gpus: Gpus, device_index: int = 0) -> tuple[int, int]:
    """Where the partial results of a launch are."""
    launcher = Launcher(plan.recipe, device_index)
    launcher.load()
    launcher.launch(plan.bind(call))
    seen = gpus.launches[-1].arguments
    return seen.o_partial, seen.lse_partial


def test_a_stream_of_a_device_has_one_block(gpus: Gpus) -> None:
    first = kept_scratch(0, 5, 100)
    assert kept_scratch(0, 5, LEAST_BYTES) == first
    assert len({first, kept_scratch(0, 6, 1), kept_scratch(1, 5, 1)}) == 3
    assert gpus.zeros == [(0, LEAST_BYTES), (0, LEAST_BYTES), (1, LEAST_BYTES)]
    assert gpus.allocated == []  # nothing of torch's


def test_a_block_is_followed_by_one_twice_as_large(gpus: Gpus) -> None:
    first = kept_scratch(0, 5, 100)
    second = kept_scratch(0, 5, LEAST_BYTES + 1)
    assert first != second
    assert {kept_scratch(0, 5, size) for size in (1, LEAST_BYTES, 2 * LEAST_BYTES)} == {second}
    assert gpus.zeros == [(0, LEAST_BYTES), (0, 2 * LEAST_BYTES)]


def test_where_the_driver_has_no_memory_left_torch_may_have_some(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, call = split_call()
    zeros = driver.zeros

    def few(device_index: int, size: int) -> int:
        if size < LEAST_BYTES:
            return zeros(device_index, size)
        raise LaunchError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "zeros", few)
        assert launched(plan, call, gpus)[0]
    assert len(gpus.allocated) == 1
    assert kept_scratch(0, STREAMS, 1) == 0  # it is not asked again


def test_threads_that_ask_at_once_get_one_block(gpus: Gpus) -> None:
    with ThreadPoolExecutor(8) as workers:
        blocks = set(workers.map(lambda _: kept_scratch(0, 5, 1), range(64)))
    assert len(blocks) == len(gpus.zeros) == 1


def test_a_capture_and_streams_beyond_the_most_have_none(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 2 * LEAST_BYTES)
    assert all(kept_scratch(0, stream, 1) for stream in (1, 2))
    assert kept_scratch(0, 3, 1) == 0
    assert kept_scratch(0, 1, 1)
    monkeypatch.setattr(kept, "is_capturing", lambda: True)
    assert kept_scratch(0, 1, 1) == 0
    assert len(gpus.zeros) == 2


def test_a_single_kernel_has_kept_scratch_without_an_allocation(gpus: Gpus) -> None:
    plan, call = split_call()
    assert len(plan.recipe.steps) == 1
    block = kept_scratch(0, STREAMS, 1)
    for _ in range(2):
        o_partial, lse_partial = launched(plan, call, gpus)
        assert o_partial == block
        assert lse_partial - o_partial == plan.recipe.scratch["o_partial"]
    assert launched(plan, call, gpus, device_index=1)[0] == kept_scratch(1, STREAMS + 1, 1)
    assert gpus.allocated == []


def test_a_captured_kernel_has_memory_that_is_allocated_for_it(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, call = split_call()
    block, _ = launched(plan, call, gpus)
    for module in (kept, launching):
        monkeypatch.setattr(module, "is_capturing", lambda: True)
    assert launched(plan, call, gpus)[0] != block
    assert len(gpus.allocated) == 1
    assert gpus.launches[-1].scratch_alive
    assert gpus.allocated[0][0]() is None


@pytest.mark.parametrize("splits", [True, False], ids=["scratch", "tile counter"])
def test_arguments_have_the_memory_of_the_stream_that_they_go_to(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    plan, call = split_call()
    if not splits:
        plan = Plan(call := call._replace(split_keys=None), DYNAMIC)
    launcher, arguments = Launcher(plan.recipe, 0), plan.bind(call)
    launcher.load()
    seen = []
    for stream, captures in ((1, False), (2, False), (1, False), (1, True), (1, False)):
        gpus.stream = STREAMS + stream
        for module in (kept, launching, tile_counters):
            monkeypatch.setattr(module, "is_capturing", lambda captures=captures: captures)
        launcher.launch(arguments)
        last = gpus.launches[-1].arguments
        seen.append((last.tile_counter, *((last.o_partial, last.lse_partial) if splits else ())))
    first, second, again, captured, after = seen
    assert first == again == after
    assert len({first, second, captured}) == 3
    for each in zip(first, second, captured, strict=True):
        assert len(set(each)) == 3
    assert len(gpus.allocated) == int(splits)  # for the graph


def test_scratch_that_no_block_holds_is_allocated(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", LEAST_BYTES)
    plan, call = split_call(seq_k=1200, heads_k=240)
    assert len(plan.recipe.steps) == 1
    assert sum(plan.recipe.scratch.values()) > LEAST_BYTES
    block = kept_scratch(0, STREAMS, 1)
    assert launched(plan, call, gpus)[0] != block
    assert len(gpus.allocated) == 1


@pytest.mark.usefixtures("two_launches")
def test_two_kernels_have_no_kept_scratch(gpus: Gpus) -> None:
    plan, call = split_call()
    assert len(plan.recipe.steps) == 2
    launched(plan, call, gpus)
    assert len(gpus.allocated) == 1
    assert LEAST_BYTES not in [size for _, size in gpus.zeros]


@pytest.mark.usefixtures("two_launches")
def test_arguments_of_two_kernels_own_their_memory_in_a_stream(gpus: Gpus) -> None:
    plan, call = split_call()
    launcher, arguments = Launcher(plan.recipe, 0), plan.bind(call)
    launcher.load()
    for _ in range(3):
        launcher.launch(arguments)
    assert len(gpus.allocated) == 1
    assert gpus.launches[0].arguments.o_partial == gpus.launches[-1].arguments.o_partial
    gpus.stream = STREAMS + 1
    launcher.launch(arguments)
    assert len(gpus.allocated) == 2
    assert [alive() is arguments.memory for alive, _ in gpus.allocated] == [False, True]


@pytest.mark.usefixtures("two_launches")
def test_only_some_arguments_own_memory_and_only_if_it_is_small(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "MOST_OWNERS", 1)
    monkeypatch.setattr(launching, "_owners", deque())
    plan, call = split_call()
    launcher, first, second = Launcher(plan.recipe, 0), plan.bind(call), plan.bind(call)
    launcher.load()
    for arguments in (first, second, first):
        launcher.launch(arguments)
    assert len(gpus.allocated) == 3
    assert first.memory is not None
    assert second.memory is None
    monkeypatch.setattr(launching, "MOST_OWNED", launcher.own.scratch.size - 1)
    gpus.allocated.clear()
    launcher.launch(second)
    assert second.memory is None
    assert gpus.launches[-1].scratch_alive
    assert gpus.allocated[0][0]() is None


def decoding(seq_k: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """One query, whose kernel has partial results."""

    def draw(seq: int, heads: int) -> Tensor:
        return torch.randn(1, seq, heads, 128, device="cuda", dtype=torch.bfloat16)

    return draw(1, 32), draw(seq_k, 8), draw(seq_k, 8)


@pytest.mark.gpu
def test_threads_and_streams_decode_at_once() -> None:
    calls = [decoding(length) for length in (512, 1024, 1024, 1536)]
    expected = [attention(*call) for call in calls]
    torch.cuda.synchronize()

    def run(i: int) -> bool:
        # Threads 0 and 1 share the default stream, the others have streams of their own.
        stream = torch.cuda.default_stream() if i < 2 else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = [attention(*calls[i]) for _ in range(200)]
        torch.cuda.synchronize()
        return all(torch.equal(o, expected[i]) for o in found)

    with ThreadPoolExecutor(len(calls)) as workers:
        assert all(workers.map(run, range(len(calls))))


@pytest.mark.gpu
def test_a_replayed_graph_and_a_call_do_not_share_scratch() -> None:
    first, second = decoding(), decoding()
    expected = [attention(*first), attention(*second)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(*first)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(stream):
            graph.replay()
        eager = [attention(*second) for _ in range(4)]
        torch.cuda.synchronize()
        assert torch.equal(captured, expected[0])
        assert all(torch.equal(each, expected[1]) for each in eager)


@pytest.mark.gpu
def test_decoding_allocates_only_its_output() -> None:
    call = decoding()
    out = attention(*call)
    assert kept_scratch(0, current_stream(0), 1)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    attention(*call, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
