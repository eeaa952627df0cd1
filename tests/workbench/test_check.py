# SPDX-License-Identifier: Apache-2.0
"""check tells right from wrong, where and by how much."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from sys import modules
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import DType, HopperForwardKernelConfig, UnsupportedError, attention
from flash_attention.call.call import Call
from flash_attention.kernel_configs import TileOrder
from flash_attention.launch.plan import Plan
from flash_attention.reference import part_judge as part_judge_module
from flash_attention.reference.judge import check_lse, check_output, generate_qkv
from flash_attention_workbench.check import CPU_SCORES, check
from tests.decode_cases import DECODE_CASES, DecodeCase
from tests.feature_cases import CASES, Case
from tests.gate import third_of_features

CONFIG = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)
PACKED = replace(CONFIG, tile_order=TileOrder.DYNAMIC)
CHECK = "flash_attention_workbench.check"  # the module, whose name the function has taken


@pytest.mark.parametrize("case", third_of_features(1))
def test_every_case_is_right_on_the_cpu(case: Case) -> None:
    call = case.make()
    report = check(call.q, call.k, call.v, return_lse=True, **call.arguments)
    out, lse = attention(call.q, call.k, call.v, return_lse=True, **call.arguments)
    assert report.ok, str(report)
    assert report.output == check_output(out, call.q, call.k, call.v, **call.keywords)
    assert report.lse == check_lse(lse, call.q, call.k, **call.keywords)
    assert report.computed_by.startswith("torch on the CPU")


@pytest.mark.parametrize("name", ["packed, d 128, rows of no entry", "one query of a cache"])
def test_a_selected_kernel_is_emulated(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    call = case.make()
    report = check(call.q, call.k, call.v, emulate=True, return_lse=True, **call.arguments)
    assert report.ok, str(report)
    assert report.computed_by.startswith("hopper(")
    assert report.computed_by.endswith("on the emulator")


def test_pages_are_gathered_for_the_oracle() -> None:
    (case,) = (case for case in DECODE_CASES if case.name == "pages of 64")
    call = case.make()
    report = check(*case.tensors(call), **case.arguments(call), config=CONFIG)
    assert report.ok, str(report)


Damage = Callable[[Tensor, Tensor], None]


def one_element(out: Tensor, lse: Tensor) -> None:
    out[0, 7, 1, 3] += 1


def an_unset_element(out: Tensor, lse: Tensor) -> None:
    out[0, 7, 1, 3] = math.nan


def one_logarithm(out: Tensor, lse: Tensor) -> None:
    lse[0, 1, 7] += 0.01


@pytest.mark.parametrize("damage", [one_element, an_unset_element, one_logarithm])
def test_a_wrong_result_is_told(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    module = modules[CHECK]
    honest = module.attention_on_cpu

    def damaged(*args: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        out, lse, maxima = honest(*args)
        damage(out, lse)
        return out, lse, maxima

    monkeypatch.setattr(module, "attention_on_cpu", damaged)
    q, k, v = generate_qkv(1, 16, 2, 64, DType.BF16)
    report = check(q, k, v, return_lse=True)
    assert not report.ok
    assert "WRONG" in str(report)
    if damage is one_logarithm:
        assert report.output.ok
        assert report.lse is not None
        assert report.lse.worst_index == (0, 1, 7)
        return
    assert report.output.worst_index == (0, 7, 1, 3)
    if damage is one_element:
        assert report.output.value == pytest.approx(report.output.exact + 1, abs=0.02)
        assert report.output.error == pytest.approx(1, abs=0.02)
        assert f"{report.output.value:.6g} at (0, 7, 1, 3)" in str(report)


def test_what_a_kernel_leaves_unset_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def stores_nothing(plan: Plan, call: Call) -> Tensor | None:
        return call.out

    monkeypatch.setattr(Plan, "run", stores_nothing)
    q, k, v = generate_qkv(1, 16, 2, 64, DType.BF16)
    assert math.isnan(check(q, k, v, config=CONFIG, out=torch.zeros_like(q)).output.error)


def test_of_large_problems_some_heads_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules[CHECK], "CPU_SCORES", 3 * 16 * 16)
    q, k, v = generate_qkv(1, 16, 8, 64, DType.BF16, n_heads_k=2)
    report = check(q, k, v)
    assert report.heads == (0, 4, 7)
    assert "3 of 8 heads: 0, 4, 7" in str(report)
    assert CPU_SCORES < part_judge_module.CHECKED_SCORES


@pytest.mark.usefixtures("no_compile")
def test_bad_arguments_are_refused() -> None:
    q, k, v = generate_qkv(1, 16, 2, 64, DType.BF16)
    with pytest.raises(UnsupportedError, match="no element to check"):
        check(q[:, :0], k, v)
    with pytest.raises(UnsupportedError, match="k and v must agree"):
        check(q, k, v[:, 1:])
    with pytest.raises(UnsupportedError, match="q is on meta"):
        check(*(t.to("meta") for t in (q, k, v)))
    call = Case("", (10, 20), (15, 25)).make()
    wrong = call.arguments | {"max_seqlen_q": 15}
    with pytest.raises(UnsupportedError, match="sequence 1 of q has 20 rows"):
        check(call.q, call.k, call.v, config=PACKED, validate=True, **wrong)


def test_the_report_is_data_too() -> None:
    report = check(*generate_qkv(1, 16, 2, 64, DType.BF16))
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["ok"], data["output"]["error"]) == (True, report.output.error)
    assert data["problem"]["dtype"] == "torch.bfloat16"


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)
def test_every_short_case_is_right_on_a_gpu(case: DecodeCase) -> None:
    call = case.make("cuda")
    report = check(*case.tensors(call), **case.arguments(call), return_lse=True)
    assert report.ok, str(report)


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_not_emulated() -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.BF16, "cuda")
    with pytest.raises(UnsupportedError, match=r"emulate=True, and q is on cuda.*q\.cpu\(\)"):
        check(q, k, v, emulate=True)
    assert check(q, k, v).ok
