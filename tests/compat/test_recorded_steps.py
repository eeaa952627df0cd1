# SPDX-License-Identifier: Apache-2.0
"""Steps that vLLM's scheduler planned, through the functions that vLLM calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.recorded.replay import (
    LAYERS,
    ONE,
    OURS,
    TWO,
    Row,
    Step,
    as_vllm_calls,
    cache_of,
    call_of,
    in_launches,
    read_steps,
    summary,
)
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


@pytest.mark.usefixtures("no_compile")
def test_steps_with_prompts_have_one_launch_and_two() -> None:
    layer = replace(LAYERS["32:8 heads, d 128"], heads=8, heads_k=2)
    decodes, prompts = STEPS[2], Step((1, 1, 40), (20, 9, 50), ((0, 1), (2,), (3, 4, 5, 6)))
    assert max(decodes.queries) == 1
    cache = cache_of(layer, 1 + max(map(max, decodes.pages)), PAGE, torch.device("cpu"))
    assert in_launches(call_of(decodes, layer, cache), max(decodes.keys), "both") == {}
    call = call_of(prompts, layer, cache)
    assert in_launches(call, 50, None) == {}
    assert in_launches(call, 50, "two").keys() == {TWO}
    assert in_launches(call, 50, "both").keys() == {ONE, TWO}
    us = [{OURS: 8.0, ONE: 8.0, TWO: 4.0}, {OURS: 9.0, ONE: 9.0, TWO: 9.0}, {OURS: 1.0}]
    rows = [
        Row("layer", n, 3, 42, 79, us=each, difference=None, right=True)
        for n, each in enumerate(us)
    ]
    (line,) = summary(rows)
    assert "two launches of 2 steps 1.414 times as fast as one (least 1.000, most 2.000)" in line


@HOPPER
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", range(0, len(STEPS), 15))
def test_whole_steps(name: str, number: int) -> None:
    judge(name, STEPS[number], "cuda")
