# SPDX-License-Identifier: Apache-2.0
"""Steps of ever new lengths: few plans serve all, and calls take turns with what a launch needs."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import pytest
import torch

from flash_attention import attention, warm_up
from flash_attention.call.call import Call
from flash_attention.launch import kernels
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import known_plan, plan_for
from tests.launch.kin_calls import PAGE, filled, of_8_bits, paged, serving
from tests.launch.stand_in import Gpus, gpu_of_the_cpu
from tests.launch.test_kin import counted, forbidden, on_device

STEPS = 400
MOST_US = 100  # that a call of new lengths takes the host


def first_steps() -> list[Call]:
    """Steps among which are some for each kernel."""
    r = random.Random(4)
    return [step_of(r) for _ in range(2 * STEPS)]


def step_of(r: random.Random) -> Call:
    """A step of an engine that decodes speculatively, or computes a chunk too."""
    if r.random() < 0.5:
        return serving(r)
    queries = [r.randint(1, 9) for _ in range(r.randint(1, 30))]
    return paged(queries, [count + r.randint(0, 500) for count in queries])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return gpu_of_the_cpu(monkeypatch)


def told(gpus: Gpus) -> dict[str, Any]:
    """What the last launch was told that follows from lengths."""
    seen = gpus.launches[-1]
    names = ("batch", "seq_len_q", "seq_len_k", "lse_head_stride", "block_table_stride", "pages")
    addresses = ("q", "cu_seqlens_q", "seqused_k", "block_table")
    return {
        **{name: getattr(seen.arguments, name) for name in (*names, *addresses)},
        **{"shape": seen.shape, "maps": seen.maps[:3], "function": seen.function},
        "partials": seen.arguments.lse_partial
        and seen.arguments.lse_partial - (seen.arguments.o_partial or 0),
    }


@pytest.mark.parametrize("eight_bits", [False, True])
@torch.no_grad()
def test_steps_take_turns_with_arguments_and_allocate_results_alone(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, eight_bits: bool
) -> None:
    made, r = counted(monkeypatch), random.Random(5)

    def step(call: Call) -> Call:
        call = of_8_bits(call) if eight_bits else call
        (known_plan(call) or plan_for(call)).run(call)
        return call

    for call in first_steps():
        step(call)
    memory, loaded, models = len(gpus.zeros), len(gpus.loaded), len(made)
    gpus.launches.clear()
    gpus.allocated.clear()
    checked = [step(step_of(r)) for _ in range(STEPS)][::4]
    assert len(made) == models <= (10 if eight_bits else 5)
    assert len(gpus.loaded) == loaded
    assert len({seen.arguments_at for seen in gpus.launches}) <= models
    if not eight_bits:  # V of 8 bits is transposed into memory of the step
        assert (len(gpus.zeros), gpus.allocated) == (memory, [])
    for call in checked:
        step(call)
        found = told(gpus)
        fresh = Plan(call)
        arguments, _ = fresh.prepare(call)
        fresh.launcher.launch(arguments)
        assert told(gpus) == found


@pytest.mark.gpu("sm_90")
@torch.no_grad()
def test_a_gpu_s_host_plans_steps_of_new_lengths_in_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    r = random.Random(6)
    calls = [step_of(r) for _ in range(STEPS)]
    first = first_steps()
    k, v = (tensor.cuda() for tensor in first[0][1:3])  # an engine has one cache
    on_gpu = [call._replace(**on_device(call))._replace(k=k, v=v) for call in (*first, *calls)]
    warm_up(*on_gpu[0][:3], **on_gpu[0].keywords())
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "compile_kernel", forbidden)
        for call in on_gpu[: len(first)]:
            attention(*call[:3], **call.keywords())
    made = counted(monkeypatch)
    times = []
    for call in on_gpu[len(first) :]:
        torch.cuda.synchronize()
        keywords = call.keywords()
        start = time.perf_counter()
        attention(*call[:3], **keywords)
        times.append((time.perf_counter() - start) * 1e6)
    assert made == []
    assert statistics.median(times) < MOST_US


@pytest.mark.gpu("sm_90")
@torch.no_grad()
def test_a_replayed_graph_follows_lengths_while_steps_take_turns() -> None:
    torch.manual_seed(7)
    queries = ([1, 1, 1, 1, 1], [1, 2, 1, 1, 0], [0, 1, 0, 3, 1])
    used = ([300, 17, 90, 1, 200], [31, 320, 5, 160, 7], [9, 64, 1, 300, 77])
    captured = filled(paged([3, 1, 1, 0, 0], [3, 90, 320, 5, 7], 20))
    step = captured._replace(**on_device(captured))
    out = torch.empty_like(step.q)
    attention(*step[:3], out=out, **step.keywords())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(*step[:3], out=out, **step.keywords())
    for counts, keys in zip(queries, used, strict=True):
        call = filled(paged(counts, keys, 20))._replace(max_seqlen_q=3)
        for name, tensor in call.tensors().items():
            getattr(step, name).copy_(tensor)
        other = filled(paged([1] * 9, [PAGE * 20] * 9))
        eager = other._replace(**on_device(other))
        attention(*eager[:3], **eager.keywords())  # with arguments that the graph had
        graph.replay()
        wanted = attention(*call[:3], **call.keywords())
        torch.testing.assert_close(out.cpu(), wanted, rtol=2e-2, atol=2e-2)
