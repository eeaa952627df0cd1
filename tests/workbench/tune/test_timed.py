# SPDX-License-Identifier: Apache-2.0
"""A lineup on a GPU: times of what is right, reasons for what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.backward_call import Gradients
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.forward import forward
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.gradient_case import pass_contender
from flash_attention_workbench.bench.timing import Contender
from flash_attention_workbench.tune import subjects, timed
from flash_attention_workbench.tune.candidates import starting_points
from flash_attention_workbench.tune.measurer import Failure

pytestmark = pytest.mark.gpu

PROBLEM = DenseProblem(DType.FP16, 64, 64, False, 512, 512, 2, 4, 4)


def test_each_is_timed_refused_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    well, lying, *_ = starting_points(PROBLEM, current_arch())
    other_type = well.in_dtype(DType.BF16)

    def computed(config: KernelConfig, q: Any, k: Any, v: Any, o: Any, *, causal: bool) -> Any:
        out = forward(config, q, k, v, o, causal=causal)
        return out.mul_(1.5) if config == lying else out

    monkeypatch.setattr(subjects, "forward", computed)
    index, notes = torch.cuda.current_device(), list[object]()
    lineup = [well, other_type, lying]
    answers = timed.time_lineup(notes.append, PROBLEM, lineup, index, 3, True)
    timed.forget_tensors()
    assert notes[:4] == [*(config.short_form() for config in lineup), timed.TIMING]
    assert len(notes) == 4 + 2 * (3 + 1)  # turns, and a judgement
    milliseconds = answers[well]
    assert isinstance(milliseconds, float)
    assert 0 < milliseconds < 10
    refused, wrong = answers[other_type], answers[lying]
    assert isinstance(refused, Failure)
    assert isinstance(wrong, Failure)
    assert (refused.fate, wrong.fate) == ("refused", "wrong")
    assert "NOT within" in wrong.reason


@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_are_judged_before_they_are_timed(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (DType.FP16, 64, 64, True, 512, 512, 2, 4, 2)
    problem = DenseBackwardProblem(*sizes, deterministic=deterministic)
    well, lying, *_ = starting_points(problem, current_arch())
    other_type = well.in_dtype(DType.BF16)

    def contender(name: str, call: Any, config: KernelConfig, into: Gradients) -> Contender:
        made = pass_contender(name, call, config, into)

        def run() -> Gradients:
            gradients: Gradients = made.run()
            assert gradients.dk is not None
            if config == lying:
                gradients.dk.mul_(1.5)
            return gradients

        return Contender(made.name, run, made.poison)

    monkeypatch.setattr(subjects, "pass_contender", contender)
    index, notes = torch.cuda.current_device(), list[object]()
    lineup = [well, other_type, lying]
    answers = timed.time_lineup(notes.append, problem, lineup, index, 3, True)
    timed.forget_tensors()
    assert notes[:4] == [*(config.short_form() for config in lineup), timed.TIMING]
    assert len(notes) == 4 + 3 + 1  # turns of the one that is right, and its judgement
    milliseconds = answers[well]
    assert isinstance(milliseconds, float)
    assert 0 < milliseconds < 10
    refused, wrong = answers[other_type], answers[lying]
    assert isinstance(refused, Failure)
    assert isinstance(wrong, Failure)
    assert (refused.fate, wrong.fate) == ("refused", "wrong")
    assert wrong.reason.startswith("dk is ")
