# SPDX-License-Identifier: Apache-2.0
"""attention: which way a call takes, and its numbers on a GPU."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import flash_attention
from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfigError,
    UnsupportedError,
    attention,
    check,
    emulate,
    explain,
    forward,
    forward_timed,
)
from flash_attention.call.call import Keywords
from flash_attention.reference.judge import generate_qkv
from tests.feature_cases import CASES, Case

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)
OWN = {"q", "k", "v", "out", "config", "validate"}


def test_every_function_takes_the_same_keywords() -> None:
    asked = inspect.signature(attention).parameters
    expected = {name: asked[name].default for name in asked if name not in OWN}
    assert set(expected) == set(Keywords.__annotations__) | {"return_lse"}
    for function in (forward, forward_timed, emulate):
        given = inspect.signature(function).parameters
        assert {name: given[name].default for name in expected} == expected


def test_what_looks_at_a_call_takes_all_its_arguments() -> None:
    asked = inspect.signature(attention).parameters
    for function in (explain, check):
        given = inspect.signature(function).parameters
        assert [(p.name, p.default, p.kind) for p in list(given.values())[: len(asked)]] == [
            (p.name, p.default, p.kind) for p in asked.values()
        ]


@pytest.mark.usefixtures("no_compile")
def test_on_the_cpu_torch_computes() -> None:
    call = Case("", 100, 130, causal=True).make(dtype=torch.float32)
    out = attention(call.q, call.k, call.v, **call.arguments)
    assert out.dtype == torch.float32


def test_with_a_config_the_kernel_is_emulated() -> None:
    call = Case("", 100, 130, causal=True).make()
    out, lse = attention(call.q, call.k, call.v, config=HOPPER, return_lse=True, **call.arguments)
    assert torch.equal(out, forward(HOPPER, call.q, call.k, call.v, **call.arguments))
    call.assert_right(out, lse)


@pytest.mark.usefixtures("no_compile")
def test_a_config_that_does_not_fit_is_refused() -> None:
    call = Case("", 100, 130, causal=True).make()
    with pytest.raises(UnsupportedError, match=r"config is for torch.float16"):
        attention(call.q, call.k, call.v, config=CONFIG)
    half = [t.half() for t in (call.q, call.k, call.v)]
    with pytest.raises(UnsupportedError, match="split_keys are asked for"):
        attention(*half, config=CONFIG, split_keys=64)
    other: Any = "hopper"
    with pytest.raises(KernelConfigError, match="pass a FlashForwardKernelConfig"):
        attention(*half, config=other)


@pytest.mark.usefixtures("no_compile")
def test_other_things_than_tensors_and_other_devices_are_refused() -> None:
    q, k, v = generate_qkv(1, 8, 2, 64, DType.FP16)
    nothing: Any = None
    with pytest.raises(UnsupportedError, match="q is a NoneType"):
        attention(nothing, k, v)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        attention(q.to("meta"), k.to("meta"), v.to("meta"))
    with pytest.raises(UnsupportedError, match="k has device meta, q has device cpu"):
        attention(q, k.to("meta"), v)


@pytest.mark.usefixtures("no_compile")
def test_validation_reads_the_lengths_before_anything_is_compiled() -> None:
    call = Case("", (10, 20), (15, 25)).make()
    wrong = call.arguments | {"max_seqlen_q": 15}
    with pytest.raises(UnsupportedError, match="entry 1 of q has 20 rows"):
        attention(call.q, call.k, call.v, config=HOPPER, validate=True, **wrong)


def test_the_package_offers_it() -> None:
    assert "attention" in flash_attention.__all__


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs an sm_90 GPU")


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_right_on_a_gpu(case: Case, dtype: torch.dtype) -> None:
    call = case.make("cuda", dtype)
    out, lse = attention(call.q, call.k, call.v, return_lse=True, validate=True, **call.arguments)
    call.assert_right(out, lse)
    for _ in range(5):
        assert torch.equal(
            attention(call.q, call.k, call.v, **call.arguments)[: len(out) - case.padding],
            out[: len(out) - case.padding],
        )


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_a_captured_call_follows_lengths_that_change() -> None:
    case = Case("", (700, 300, 1), 1024, batch=3, used=(1000, 300, 5), causal=True)
    call = case.make("cuda")
    out = torch.empty_like(call.q)
    attention(call.q, call.k, call.v, out=out, **call.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(call.q, call.k, call.v, out=out, **call.arguments)
    other = Case("", (200, 600, 201), 1024, batch=3, used=(256, 999, 201), causal=True)
    changed = other.make("cuda", seed=1)
    for old, new in zip((call.q, call.k, call.v), (changed.q, changed.k, changed.v), strict=True):
        old.copy_(new)
    for name in ("cu_seqlens_q", "seqused_k"):
        call.keywords[name].copy_(changed.keywords[name])
    graph.replay()
    changed.assert_right(out)
