# SPDX-License-Identifier: Apache-2.0
"""Few queries of many keys, all sequences of one length: when their keys are split, and right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Rule
from flash_attention.families.sm90.forward import combine, dense_chunk
from flash_attention.families.sm90.forward.decode import choose_splits
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.launch import device
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from tests.devices import HOPPER, on_devices, ran
from tests.feature_cases import Case, MadeCase

ARCH, SMS = ARCHES["sm_90"], 132
CHUNK = Problem(
    batch=1,
    seq_q=128,
    seq_k=4096,
    heads=16,
    heads_k=8,
    d_head=256,
    d_v=256,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
    causal=True,
)


def chosen(**change: Any) -> KvSplits | None:
    """The splits of the chunk with these changes, on an H200."""
    found = SM90.choose_split(replace(CHUNK, **change), ARCH, SMS, None)
    if isinstance(found, str):
        return None
    config, split = found
    config.check(ARCH)
    assert config.consumers == 2
    return split


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"causal": False},
        {"batch": 2, "seq_q": 239, "heads": 8, "heads_k": 1},
        {"seq_q": 1024, "seq_k": 11606, "heads": 4, "heads_k": 1},
        {"softcap": 20.0, "sinks": True},
        {"seq_q": 300, "heads": 12, "heads_k": 2, "d_head": 128, "d_v": 128},
        {"seq_q": 128, "seq_k": 16000, "heads": 12, "heads_k": 2, "d_head": 128, "d_v": 128},
    ],
)
def test_few_tiles_are_split_between_nearly_all_multiprocessors(change: dict[str, Any]) -> None:
    problem = replace(CHUNK, **change)
    split = chosen(**change)
    assert split is not None
    assert 0.85 * SMS < split.num_ctas(problem, consumers=2) <= SMS


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 32},
        {"seq_k": 300},
        {"seq_q": 4096},
        {"window": (900, 0), "causal": False},
        {"dropout_p": 0.1},
        {"return_max": True},
        {"d_head": 264},
        {"seq_q": 0},
    ],
)
def test_whole_tiles_serve_the_rest(change: dict[str, Any]) -> None:
    assert chosen(**change) is None


def test_a_tile_for_each_multiprocessor_stays_whole() -> None:
    assert chosen(batch=2, seq_q=473, seq_k=8192, heads_k=16) is None


def test_a_chunk_that_stays_whole_says_why() -> None:
    why = choose_splits(replace(CHUNK, seq_k=200, heads=8), ARCH, SMS)
    assert why == "128 queries do not fit in 64 rows"


@pytest.fixture
def small_ones_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """On more multiprocessors than the emulator has otherwise."""
    monkeypatch.setattr(device, "EMULATED_SMS", 7)
    for cost in ("START", "COMBINING", "COMBINING_A_ROW"):
        monkeypatch.setattr(dense_chunk, cost, 0.0)


CASES = [
    Case("causal, splits of several tiles", 100, 900, causal=True),
    Case("sinks, a softcap, 3 heads of a group", 67, 700, 96, 80, 3, 1, 2, sinks=True, softcap=9.0),
    Case("d 256", 70, 600, 256, 256, 2, 2, causal=True),
]
LONG = [
    Case("2 x 239", 239, 4096, 256, 256, 8, 1, 2, causal=True),
    Case("1 x 300, d 128", 300, 4096, 128, 128, 12, 2, causal=True),
    Case("1 x 128, 12 heads", 128, 16000, 128, 128, 12, 2, causal=True, sinks=True),
]


def planned(made: MadeCase) -> Plan:
    plan = Plan(made.call(return_lse=True), arch=MEASURED_ARCH)
    assert plan.choice.rule is Rule.DECODE
    splits = plan.recipe.features.splits  # type: ignore[attr-defined]
    assert splits in (SplitKind.EVEN, SplitKind.FIXED)
    return plan


@pytest.mark.usefixtures("small_ones_are_split")
@pytest.mark.parametrize(("asked", "device"), on_devices(CASES, LONG))
def test_split_chunks_are_right(asked: Case, device: str, schedule: str) -> None:
    made = asked.make(device)
    call = made.call(return_lse=True)
    made.assert_right(*ran(planned(made), call, Settings(schedule)))


@pytest.mark.usefixtures("small_ones_are_split")
def test_a_warp_combines_a_row_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CASES[1].make()  # whose last CTA has warps without a row
    results = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(combine, "MANY_ROWS", least)
        plan = planned(made)
        assert plan.recipe.steps[-1].unit.name.endswith("_row_in_warp") is (least == 1)
        results.append(ran(plan, made.call(return_lse=True)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("asked", LONG, ids=lambda asked: asked.name)
def test_gradients_are_those_of_whole_tiles(asked: Case) -> None:
    made = replace(asked, sinks=False).make("cuda")
    assert planned(made)
    whole = SM90.heuristic(planned(made).problem, MEASURED_ARCH)
    do = torch.randn_like(made.q)
    results: list[list[Tensor]] = []
    for config in (None, whole):
        leaves = [t.clone().requires_grad_() for t in (made.q, made.k, made.v)]
        out = attention(*leaves, causal=True, config=config)
        out.backward(do)
        results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for split, whole_one in zip(*results, strict=True):
        torch.testing.assert_close(split, whole_one, rtol=2e-2, atol=2e-2)


@HOPPER
def test_a_graph_replays_a_split_chunk() -> None:
    made = LONG[0].make("cuda")
    assert planned(made)

    def run() -> Tensor:
        out: Tensor = attention(made.q, made.k, made.v, causal=True)
        return out

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for _ in range(3):
        made.q.normal_()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, run())
