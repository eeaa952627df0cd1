# SPDX-License-Identifier: Apache-2.0
"""check with tangents: what computes them, and that a wrong tangent is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.check import check
from tests.families.sm90.tangent.cases import USUAL

TENSORS = generate_qkv(1, 40, 2, 64, torch.bfloat16, n_heads_k=1)


def test_torch_computes_on_the_cpu() -> None:
    report = check(*TENSORS, tangents=True, window=(5, 3), softcap=2.0, return_lse=True)
    assert report.ok, str(report)
    assert report.tangents is not None
    assert report.computed_by.startswith("torch on the CPU")
    assert set(report.tangents.checks) == {"o_tangent", "lse_tangent"}
    assert report.lse is not None


@pytest.mark.parametrize(
    "given", [{"emulate": True}, {"config": USUAL}], ids=["chosen", "a config"]
)
def test_the_kernel_is_emulated(given: dict[str, Any]) -> None:
    report = check(*TENSORS, tangents=True, causal=True, gradients=True, **given)
    assert report.ok, str(report)
    assert report.computed_by == f"{USUAL.short_form()}, on the emulator"
    assert report.gradients is not None
    assert "o_tangent" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["tangents"]["heads"] == [0, 1]


def test_a_wrong_tangent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Plan.run

    def wrong(plan: Plan, call: Any) -> Any:
        found = run(plan, call)
        assert isinstance(call, TangentCall)
        return WithTangent(found.o, found.lse, 1.2 * found.o_tangent, found.lse_tangent)

    monkeypatch.setattr(Plan, "run", wrong)
    report = check(*TENSORS, tangents=True, emulate=True)
    assert (report.output.ok, report.ok) == (True, False)
    assert "o_tangent   WRONG" in str(report)


def test_what_has_no_tangent_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a tangent and sinks is given"):
        check(*TENSORS, tangents=True, sinks=torch.zeros(2))
    with pytest.raises(UnsupportedError, match="tangents is 3; pass True or False"):
        check(*TENSORS, tangents=3)  # type: ignore[arg-type]
