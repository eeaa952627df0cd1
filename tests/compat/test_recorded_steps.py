# SPDX-License-Identifier: Apache-2.0
"""Steps that vLLM's scheduler planned, through the functions that vLLM calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.recorded.replay import LAYERS, Step, as_vllm_calls, cache_of, call_of, read_steps
from flash_attention.reference.part_judge import PartJudge
from tests.devices import HOPPER

PAGE, STEPS = read_steps()


def of_short_requests(step: Step, most: int = 300) -> Step:
    """The requests of a step that a CPU computes soon."""
    rows = zip(step.queries, step.keys, step.pages, strict=True)
    return Step(*zip(*[row for row in rows if row[1] <= most][:6], strict=True))


def judge(name: str, step: Step, device: str) -> None:
    layer = LAYERS[name]
    if device == "cpu":
        layer = replace(layer, heads=layer.heads // 4, heads_k=layer.heads_k // 4)
    pages = 1 + max(max(own) for own in step.pages)
    call = call_of(step, layer, cache_of(layer, pages, PAGE, torch.device(device)))
    found = as_vllm_calls(call, max(step.keys))
    check = PartJudge(*call[:3], scores=1, **call.keywords()).check(found)
    assert check.ok, str(check)


def test_steps_are_those_of_an_engine() -> None:
    assert len(STEPS) * len(LAYERS) >= 300
    assert sum(max(step.queries) > 1 for step in STEPS) > 20  # with chunks of prompts
    assert max(len(step.keys) for step in STEPS) == 128
    for step in STEPS:
        rows = zip(step.queries, step.keys, step.pages, strict=True)
        assert all(q <= k <= PAGE * len(own) < k + PAGE for q, k, own in rows)
        assert len({page for own in step.pages for page in own}) == sum(map(len, step.pages))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", [9, 41])
def test_requests_on_the_cpu(name: str, number: int) -> None:
    judge(name, of_short_requests(STEPS[number]), "cpu")


@HOPPER
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", range(0, len(STEPS), 15))
def test_whole_steps(name: str, number: int) -> None:
    judge(name, STEPS[number], "cuda")
