# SPDX-License-Identifier: Apache-2.0
"""Mixed steps of a serving engine: two kernels share the sequences by their numbers of queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.recorded.replay import read_steps
from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.decode import Steps
from flash_attention.families.sm90.forward.mixed import decoding_at_least, few_queries
from flash_attention.kernel_configs import HopperFp8KernelConfig
from flash_attention.launch import device as devices
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.part_judge import PartJudge
from tests.devices import HOPPER, on_devices, ran
from tests.serving_steps import Step, assert_right, of_8_bits

SMS = 132
E4M3 = torch.float8_e4m3fn
WINDOW = (("window", (30, 0)),)
STEPS = {
    "decodes and prompts": Step((40, 1, 33, 3), (100, 333, 33, 70)),
    "no queries, no keys": Step((0, 1, 70, 0, 32, 1), (40, 0, 0, 0, 300, 20)),
    "prompts behind many decodes": Step(
        (*(1,) * 11, 40, *(2,) * 9, 33), (*range(5, 16), 90, *range(30, 39), 33)
    ),
    "7 heads of a group, a window, sinks": Step(
        (1, 30, 10, 9), (300, 200, 90, 0), heads=14, sinks=True, keywords=WINDOW
    ),
}


def planned(call: Call, sms: int, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Two launches. With more multiprocessors, keys of prompts are split too."""
    monkeypatch.setattr(devices, "EMULATED_SMS", sms)
    plan = Plan(call, arch=MEASURED_ARCH, mixed=True) if call.q.is_cpu else Plan(call, mixed=True)
    assert plan.choice.decoding is not None
    return plan


def written(plan: Plan, call: Call, part: slice) -> list[bool]:
    """Whether some kernels of a plan write the rows of each sequence, all of them or none."""
    recipe = plan.recipe
    plan._recipe = replace(recipe, steps=recipe.steps[part], main=0)
    ran_alone = emulate_plan(plan, call, Settings())
    plan._recipe = recipe
    assert ran_alone.findings == ()
    assert ran_alone.lse is not None
    rows = ran_alone.output.isfinite().flatten(1).float().mean(1)
    assert torch.equal(rows, (~ran_alone.lse.isnan()).float().mean(0))
    assert call.cu_seqlens_q is not None
    of_each = rows.split(call.cu_seqlens_q.diff().tolist())
    assert all(len(set(each.tolist())) <= 1 for each in of_each)
    return [bool(each.any()) for each in of_each]


@pytest.mark.slow
@pytest.mark.parametrize("sms", [1, 6])
@pytest.mark.parametrize(("name", "device"), on_devices(STEPS))
def test_two_kernels_compute_a_step(
    name: str, device: str, sms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = STEPS[name].call(device)
    assert_right(call, *ran(planned(call, sms, monkeypatch), call))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_kernel_writes_no_row_of_the_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = STEPS[name]
    call = step.call()
    plan = planned(call, 1, monkeypatch)
    few = plan.choice.few
    assert written(plan, call, slice(-1)) == [count > few for count in step.queries]
    assert written(plan, call, slice(-1, None)) == [0 < count <= few for count in step.queries]


@pytest.mark.slow
@pytest.mark.parametrize("queries", [(1, 3, 2), (40, 50)], ids=["decodes", "prompts"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=HOPPER)])
def test_one_of_the_kernels_may_have_nothing_to_do(
    queries: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Step(queries, (99, 200, 40)[: len(queries)]).call(device)._replace(max_seqlen_q=80)
    assert_right(call, *ran(planned(call, 1, monkeypatch), call))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q_8_bit", "device"), on_devices([pytest.param(q, id=f"{q}") for q in (True, False)])
)
def test_8_bits_have_two_kernels_too(
    q_8_bit: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V of prompts alone is transposed, to as many places as there may be prompts."""
    step = Step((1, 140, 0, 3, 130, 20), (100, 150, 20, 70, 130, 90), heads=2, heads_k=1)
    call = of_8_bits(step.call(device), q_8_bit=q_8_bit)
    plan = planned(call, 2, monkeypatch)
    out, _ = ran(plan, call)
    check = PartJudge(*call[:3], scores=1, **call.keywords()).check(out)
    assert check.ok, str(check)
    if not q_8_bit or device == "cuda":
        return
    assert isinstance(plan.config, HopperFp8KernelConfig)
    alone = Plan(call, arch=MEASURED_ARCH, mixed=False)
    assert plan.recipe.scratch["v_tiles"] == alone.recipe.scratch["v_tiles"] * 2 // 6
    assert written(plan, call, slice(-1)) == [count > 128 for count in step.queries]


@HOPPER
def test_a_captured_step_follows_lengths_that_change() -> None:
    first, second = Step((200, 1, 2), (900, 333, 70)), Step((1, 1, 201), (500, 20, 400))
    call, changed = first.call("cuda"), second.call("cuda", seed=1)
    pages = max(len(call.k), len(changed.k))
    width = max(call.block_table.shape[1], changed.block_table.shape[1])  # type: ignore[union-attr]

    def padded(given: Call) -> Call:
        assert given.block_table is not None
        table = given.block_table.new_zeros(3, width)
        table[:, : given.block_table.shape[1]] = given.block_table.clamp(max=pages - 1)
        k, v = (tensor.new_zeros(pages, *tensor.shape[1:]) for tensor in (given.k, given.v))
        k[: len(given.k)], v[: len(given.v)] = given.k, given.v
        return given._replace(k=k, v=v, block_table=table, max_seqlen_q=201)

    call, changed = padded(call), padded(changed)
    plan = Plan(call, mixed=True)
    assert_right(call, *plan.run(call))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = plan.run(call)
    for name in ("q", "k", "v", "cu_seqlens_q", "seqused_k", "block_table"):
        getattr(call, name).copy_(getattr(changed, name))
    graph.replay()
    assert_right(changed, out, lse)


LLAMA = Problem(
    batch=128,
    seq_q=1644,
    seq_k=14100,
    heads=32,
    heads_k=8,
    d_head=128,
    d_v=128,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
    causal=True,
    total_q=1771,
    seqused_k=True,
    page_keys=16,
    pages=1 << 15,
)
WINDOWED = {"causal": False, "window": (127, 0), "heads": 64, "d_head": 64, "d_v": 64}
EIGHT_BITS = {"dtype": E4M3, "seq_q": 2896}


@pytest.mark.parametrize(
    ("few", "change"),
    [
        (0, {}),
        (0, WINDOWED | {"total_q": 4096, "seq_q": 3969}),
        (128, {"dtype": E4M3}),
        (128, {"dtype": E4M3, "batch": 15, "total_q": 447, "seq_q": 433}),
        (128, EIGHT_BITS | {"batch": 5, "total_q": 2900}),
        (0, EIGHT_BITS | {"batch": 4, "total_q": 2899}),
        (16, {"kv_dtype": E4M3, "batch": 15, "total_q": 447, "seq_q": 433}),
    ],
)
def test_the_rule(few: int, change: dict[str, Any]) -> None:
    assert few_queries(replace(LLAMA, **change)) == few


@pytest.mark.parametrize(
    "change",
    [
        {"seq_q": 16, "total_q": 300},  # every sequence decodes
        {"batch": 1, "total_q": 1644},
        {"total_q": 128 * 1644},  # every sequence may be a prompt
        {"batch_invariant": True},
        {"total_q": None},
        {"seqused_k": False, "total_k": 1771, "page_keys": 0},  # training
        {"dropout_p": 0.5},
        {"return_max": True},
        {"heads": 8 * 65},
        {"d_head": 512, "d_v": 512},
    ],
)
def test_one_kernel_computes_the_rest(change: dict[str, Any]) -> None:
    for dtype in (torch.bfloat16, E4M3):
        assert few_queries(replace(LLAMA, dtype=dtype, **change)) == 0


def test_it_can_be_asked_for_and_left_out() -> None:
    short = replace(LLAMA, total_q=585, seq_q=458)
    assert few_queries(short, mixed=True) == 16
    assert few_queries(replace(LLAMA, heads=28, heads_k=4), mixed=True) == 9
    assert few_queries(replace(LLAMA, **WINDOWED), mixed=True) == 8  # type: ignore[arg-type]
    assert few_queries(replace(LLAMA, dtype=E4M3), mixed=False) == 0
    for part in LLAMA.shared(16):
        assert few_queries(part, mixed=True) == 0
    assert few_queries(replace(LLAMA, batch_invariant=True), mixed=True) == 0


def test_the_host_counts_no_more_decoding_sequences_than_there_are() -> None:
    counted = []
    for step in read_steps()[1]:
        sizes = {"batch": len(step.queries), "seq_q": max(step.queries)}
        problem = replace(LLAMA, **sizes, total_q=sum(step.queries))  # type: ignore[arg-type]
        for few in (8, 16, 128):
            least = decoding_at_least(problem, few)
            assert least <= sum(count <= few for count in step.queries)
            counted.append(least)
    assert max(counted) > 100


def test_a_window_hides_the_keys_that_would_be_split() -> None:
    chunk = replace(LLAMA, batch=15, total_q=447, seq_q=433)
    assert Steps.of(chunk, SMS) is Steps.CHUNK
    assert Steps.of(replace(chunk, causal=False, window=(127, 0)), SMS) is Steps.MANY_TILES
    assert Steps.of(replace(chunk, causal=False, window=(4095, 0)), SMS) is Steps.CHUNK


def test_more_prompts_have_room_for_v_transposed() -> None:
    """Places for 128 sequences of 14,100 keys would be 1.8 GiB."""
    step = replace(LLAMA, dtype=E4M3, total_q=4096, seq_q=3969)
    assert Steps.of(step, SMS) is Steps.CHUNK
    few, many = step.shared(128)
    assert (few.most_sequences, many.most_sequences) == (128, 31)
    assert Steps.of(few, SMS) is Steps.DECODE
    assert Steps.of(many, SMS) is Steps.MANY_TILES
    assert replace(many, batch=5).most_sequences == 5
    assert replace(many, total_q=100).most_sequences == 1


@pytest.mark.usefixtures("no_compile")
def test_calls_choose_by_themselves() -> None:
    call = of_8_bits(Step((130, *(1,) * 4), (200,) * 5).call(), q_8_bit=False)
    plan = Plan(call, arch=MEASURED_ARCH)
    assert len(plan.recipe.steps) == 2
    assert plan.choice.decoding is not None
    given = Plan(call, plan.config, arch=MEASURED_ARCH)
    assert (len(given.recipe.steps), given.choice.decoding) == (1, None)
    assert len(Plan(call, arch=MEASURED_ARCH, mixed=False).recipe.steps) == 1
    assert len(Plan(call._replace(batch_invariant=True), arch=MEASURED_ARCH).recipe.steps) == 1
    assert plan.recipe.may_keep_scratch
    assert plan.recipe.counters == max(2, plan.recipe.arrivals)
