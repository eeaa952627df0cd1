# SPDX-License-Identifier: Apache-2.0
"""check with gradients: which pass computes them, and that a wrong gradient is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from sys import modules
from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError
from flash_attention.call.backward_call import BackwardCall, Gradients
from flash_attention.launch.compute import compute_gradients
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.check import check
from flash_attention_workbench.gradient_check import random_gradients_of
from tests.devices import DEVICES
from tests.feature_cases import CASES, Case
from tests.gate import one_in

CHECK = "flash_attention_workbench.gradient_check"
CONFIG = "backward(BF16, 64, 64, 64, 4): columns_1"
DENSE = [case for case in CASES if "block_table" not in case.make().arguments]


@pytest.mark.parametrize("case", one_in(4, DENSE, id_of=lambda case: str(case.name)))
def test_every_case_is_right_on_the_cpu(case: Case) -> None:
    call = case.make()
    report = check(call.q, call.k, call.v, gradients=True, return_lse=True, **call.arguments)
    assert report.ok, str(report)
    assert report.gradients is not None
    assert report.gradients.computed_by.startswith("torch on the CPU")
    sinks = {"dsinks"} if call.arguments.get("sinks") is not None else set()
    assert set(report.gradients.checks) == {"dq", "dk", "dv"} | sinks


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernels_of_a_training_call_run(device: str) -> None:
    q, k, v = generate_qkv(1, 70, 2, 64, torch.bfloat16, device, n_heads_k=1)
    report = check(
        *(q, k, v),
        gradients=True,
        emulate=device == "cpu",
        deterministic=True,
        sinks=torch.randn(2, device=device),
    )
    assert report.ok, str(report)
    assert report.lse is None  # it was not asked for
    assert report.gradients is not None
    assert "backward(BF16, 64," in report.gradients.computed_by
    assert report.gradients.deterministic
    assert "on the emulator, deterministic" in str(report) or device == "cuda"
    assert json.loads(json.dumps(report.to_dict()))["gradients"]["checks"]["dsinks"]["error"] >= 0


def test_a_backward_config_is_emulated_and_the_numbers_are_its_own() -> None:
    q, k, v = generate_qkv(1, 70, 2, 64, torch.bfloat16, "cpu", n_heads_k=1)
    report = check(q, k, v, gradients=True, backward_config=CONFIG, causal=True, return_lse=True)
    assert report.gradients is not None
    assert report.computed_by.startswith("torch")
    assert report.gradients.computed_by.startswith("backward(BF16, 64, 64, 64, 4)")
    seen = seen_by_check(q, k, v, causal=True, return_lse=True)
    assert seen.dlse is not None
    right = compute_gradients(seen, CONFIG)
    judge = GradientJudge(seen.call, seen.do, seen.dlse)
    assert report.gradients.checks == judge.check(right)


def seen_by_check(*tensors: torch.Tensor, **keywords: Any) -> BackwardCall:
    """The backward call that `check` makes of these arguments, as torch computes it."""
    seen: list[BackwardCall] = []
    module = modules[CHECK]
    honest = module.gradients_on_cpu

    def recorded(call: BackwardCall) -> Gradients:
        seen.append(call)
        gradients: Gradients = honest(call)
        return gradients

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "gradients_on_cpu", recorded)
        assert check(*tensors, gradients=True, **keywords).ok
    return seen[0]


def one_element(gradients: Gradients) -> None:
    assert gradients.dk is not None
    gradients.dk[0, 7, 0, 3] += 1


def an_unset_element(gradients: Gradients) -> None:
    assert gradients.dk is not None
    gradients.dk[0, 7, 0, 3] = math.nan


@pytest.mark.parametrize("damage", [one_element, an_unset_element])
def test_a_wrong_gradient_is_told(
    damage: Callable[[Gradients], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = modules[CHECK]
    honest = module.gradients_on_cpu

    def damaged(call: BackwardCall) -> Gradients:
        gradients: Gradients = honest(call)
        damage(gradients)
        return gradients

    monkeypatch.setattr(module, "gradients_on_cpu", damaged)
    report = check(*generate_qkv(1, 40, 2, 64, torch.bfloat16, "cpu"), gradients=True)
    assert report.gradients is not None
    assert not report.ok
    assert [name for name, one in report.gradients.checks.items() if not one.ok] == ["dk"]
    assert report.gradients.checks["dk"].worst_index == (0, 7, 0, 3)
    lines = dict(report.rows())
    assert lines["dk"].startswith("WRONG: largest error")
    assert lines["dk"].endswith("; 1 of 5,120 elements (0.0195 %)")
    assert lines["dq"].startswith("right: ")


def test_what_has_no_gradient_is_refused_first() -> None:
    q, k, v = generate_qkv(1, 40, 2, 64, torch.bfloat16, "cpu")
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        check(q, k, v, gradients=True, out=torch.empty_like(q))
    with pytest.raises(UnsupportedError, match="gradients is 'yes'; pass True or False"):
        check(q, k, v, gradients="yes")  # type: ignore[arg-type]


def test_gradients_of_results_are_drawn_once() -> None:
    out, lse = torch.empty(1, 40, 2, 64, dtype=torch.bfloat16), torch.empty(1, 2, 40)
    (do, dlse), (again, _) = random_gradients_of(out, lse), random_gradients_of(out, None)
    assert torch.equal(do, again)
    assert dlse is not None
    assert (do.dtype, dlse.dtype, dlse.shape) == (out.dtype, lse.dtype, lse.shape)
    assert 0.9 < float(do.float().std()) < 1.1


def test_tensors_that_require_grad_are_checked() -> None:
    q, k, v = (torch.randn(1, 16, 2, 8, requires_grad=True) for _ in range(3))
    sinks = torch.zeros(2, requires_grad=True)
    report = check(q, k, v, sinks=sinks, gradients=True)
    assert report.ok, str(report)
