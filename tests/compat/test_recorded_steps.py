# SPDX-License-Identifier: Apache-2.0
"""Steps that the schedulers of vLLM and SGLang planned, through the functions that they call."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor

from benchmarks.recorded.record_sglang import MOST_REQUESTS, described
from benchmarks.recorded.replay import (
    ENGINES,
    LAYERS,
    ONE,
    OURS,
    TWO,
    Row,
    Step,
    as_engine_calls,
    cache_of,
    call_of,
    in_launches,
    laid_out,
    read_record,
    read_steps,
    sglang_keywords,
    summary,
)
from flash_attention.compat import sglang
from flash_attention.reference.part_judge import PartJudge
from tests.devices import HOPPER

RECORDS = {engine: read_steps(engine) for engine in ENGINES}
SOME = {"sglang": 4, "sglang_64": 11}  # a prompt alone, and one beside requests that decode


def of_short_requests(step: Step) -> Step:
    """The shortest requests of a step, in the same order of pages of a smaller cache."""
    rows = sorted(zip(step.queries, step.keys, step.pages, strict=True), key=lambda row: row[1])
    queries, keys, pages = zip(*rows[:6], strict=True)
    places = {page: place for place, page in enumerate(sorted({*chain(*pages)}))}
    return Step(queries, keys, tuple(tuple(places[page] for page in own) for own in pages))


def judge(engine: str, name: str, step: Step, device: str) -> None:
    layer = LAYERS[name]
    if device == "cpu":
        layer = replace(layer, heads=layer.heads // 4, heads_k=layer.heads_k // 4)
    pages, page = 1 + max(max(own) for own in step.pages), RECORDS[engine][0]
    cache = laid_out(engine, cache_of(layer, pages, page, torch.device(device)))
    call = call_of(step, layer, cache)
    found = as_engine_calls(engine, call, max(step.keys))()
    check = PartJudge(*call[:3], scores=1, **call.keywords()).check(found)
    assert check.ok, str(check)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_those_of_an_engine(engine: str) -> None:
    page, steps = RECORDS[engine]
    for step in steps:
        rows = zip(step.queries, step.keys, step.pages, strict=True)
        assert all(q <= k <= page * len(own) < k + page for q, k, own in rows)
        assert all(len(set(own)) == len(own) for own in step.pages)


def test_steps_of_vllm() -> None:
    _, steps = RECORDS["vllm"]
    assert len(steps) * len(LAYERS) >= 300
    assert sum(max(step.queries) > 1 for step in steps) > 20  # with chunks of prompts
    assert max(len(step.keys) for step in steps) == 128
    for step in steps:
        assert len({page for own in step.pages for page in own}) == sum(map(len, step.pages))


def test_steps_of_sglang() -> None:
    steps = [step for engine in SOME for step in RECORDS[engine][1]]
    assert [RECORDS[engine][0] for engine in SOME] == [1, 64]
    assert len(steps) * len(LAYERS) >= 300
    assert sum(max(step.queries) > 1 for step in steps) > 10  # with chunks of prompts
    assert 32 < max(len(step.keys) for step in steps) <= MOST_REQUESTS
    shared = [len({*chain(*step.pages)}) < sum(map(len, step.pages)) for step in steps]
    assert sum(shared) > len(steps) // 2  # with a prompt of several requests in the radix cache


@pytest.mark.parametrize("engine", SOME)
def test_sglang_is_called_as_it_was_recorded(engine: str) -> None:
    """The same keywords, which its function has, with the same values, types and layouts."""
    page, steps = RECORDS[engine]
    calls, layer = read_record(engine)["calls"], LAYERS["32:8 heads, d 128"]
    assert {"EXTEND", "DECODE"} <= calls.keys()
    known = inspect.signature(sglang.flash_attn_with_kvcache).parameters.keys()
    for mode, recorded in calls.items():
        decodes = mode == "DECODE"
        step = next(step for step in steps if (max(step.queries) == 1) == decodes)
        cache = laid_out(engine, cache_of(layer, 4, page, torch.device("cpu")))
        given = sglang_keywords(call_of(step, layer, cache))
        assert given.keys() == recorded.keys() <= known
        for name, value in given.items():
            if isinstance(value, Tensor):
                dtype, shape, _ = recorded[name]
                assert described(value)[0] == dtype
                assert value.dim() == len(shape)
                assert value.is_contiguous()
            elif name not in ("max_seqlen_q", "softmax_scale"):
                assert (list(value) if isinstance(value, tuple) else value) == recorded[name]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("engine", "number"),
    [("vllm", 9), ("vllm", 41), *((each, n) for each in SOME for n in (SOME[each], 28))],
)
def test_requests_on_the_cpu(engine: str, name: str, number: int) -> None:
    judge(engine, name, of_short_requests(RECORDS[engine][1][number]), "cpu")


@pytest.mark.usefixtures("no_compile")
def test_steps_with_prompts_have_one_launch_and_two() -> None:
    layer = replace(LAYERS["32:8 heads, d 128"], heads=8, heads_k=2)
    page, steps = RECORDS["vllm"]
    decodes, prompts = steps[2], Step((1, 1, 40), (20, 9, 50), ((0, 1), (2,), (3, 4, 5, 6)))
    assert max(decodes.queries) == 1
    cache = cache_of(layer, 1 + max(map(max, decodes.pages)), page, torch.device("cpu"))
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
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("part", range(5))
def test_whole_steps(part: int, engine: str, name: str) -> None:
    steps = RECORDS[engine][1]
    judge(engine, name, steps[part * len(steps) // 5], "cuda")
