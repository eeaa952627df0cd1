# SPDX-License-Identifier: Apache-2.0
"""Problems in memory: contenders of both passes in the emulator, and what is wrong with results."""

from __future__ import annotations

import pytest
import torch

from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem, DenseTangentProblem
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.timing import Contender
from flash_attention_workbench.tune.candidates import heuristic
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.subjects import BackwardSubject, ForwardSubject, subject_of
from flash_attention_workbench.tune.timed import run_once

pytestmark = pytest.mark.slow  # left out of `make quick`

CPU, SM80 = torch.device("cpu"), ARCHES["sm_80"]
SIZES = (DType.FP16, 32, 32, True, 33, 70, 1, 2, 1)
FORWARD = DenseProblem(*SIZES)
BACKWARD = DenseBackwardProblem(*SIZES)


@pytest.fixture(scope="module")
def backward() -> BackwardSubject:
    subject = subject_of(BACKWARD, CPU, SM80)
    assert isinstance(subject, BackwardSubject)
    return subject


def test_attention_is_run_and_judged() -> None:
    subject = subject_of(FORWARD, CPU, SM80)
    assert isinstance(subject, ForwardSubject)
    contender = subject.contender(heuristic(FORWARD, SM80))
    contender.poison()
    assert subject.fault(subject.o) is not None
    result = contender.run()
    assert subject.fault(result) is None
    result[0, 5] *= 1.5
    assert "NOT within" in str(subject.fault(result))


def test_gradients_are_run_and_judged(backward: BackwardSubject) -> None:
    config = heuristic(BACKWARD, SM80)
    contender = backward.contender(config)
    assert contender.name == config.short_form()
    gradients = contender.run()
    assert backward.fault(gradients) is None
    for name in ("dq", "dk", "dv"):
        wrong = gradients._replace(**{name: 1.5 * getattr(gradients, name)})
        fault = str(backward.fault(wrong))
        assert fault.startswith(f"{name} is ")
        assert "NOT within" in fault


def test_tangents_are_run_and_judged() -> None:
    problem = DenseTangentProblem(*SIZES)
    subject = subject_of(problem, CPU, MEASURED_ARCH)
    result = subject.contender(heuristic(problem, MEASURED_ARCH)).run()
    assert subject.fault(result) is None
    for name in ("o", "o_tangent", "lse_tangent"):
        wrong = result._replace(**{name: 1.5 * getattr(result, name)})
        assert str(subject.fault(wrong)).startswith(f"{name} is ")


def test_only_the_wanted_gradients_are_computed() -> None:
    problem = DenseBackwardProblem(*SIZES, wanted=Wanted(dk=False, dv=False), deterministic=True)
    subject = BackwardSubject.of(problem, CPU, SM80)
    assert (subject.call.wanted, subject.call.deterministic) == (problem.wanted, True)
    gradients = subject.contender(heuristic(problem, SM80)).run()
    assert subject.gradients.dq is not None
    assert subject.gradients.dq.shape == (1, 33, 2, 32)
    for each in (gradients, subject.gradients):
        assert [gradient is not None for gradient in each] == [True, False, False, False]
    assert subject.fault(gradients) is None


def test_what_is_wrong_or_refused_is_never_timed(
    backward: BackwardSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = heuristic(BACKWARD, SM80)
    lying, other_type = well.in_dtype(DType.BF16), heuristic(FORWARD, SM80)

    def contender(subject: BackwardSubject, config: object) -> Contender:
        made = real(subject, well if config == lying else config)  # type: ignore[arg-type]
        if config != lying:
            return made
        return Contender(
            "lying", lambda: Gradients(*(None if d is None else -d for d in made.run()))
        )

    real = BackwardSubject.contender
    monkeypatch.setattr(BackwardSubject, "contender", contender)
    notes, waited = list[object](), list[int]()
    lineup = [well, lying, other_type]
    contenders, failures = run_once(notes.append, backward, lineup, lambda: waited.append(1))
    assert notes == [config.short_form() for config in lineup]
    assert len(waited) == 2  # the refused one never ran
    assert list(contenders) == [well]
    assert list(failures) == [lying, other_type]
    wrong, refused = failures[lying], failures[other_type]
    assert wrong.fate == "wrong"
    assert wrong.reason.startswith("dq is ")
    assert isinstance(refused, Failure)
    assert refused.fate == "refused"
    assert "a config of the forward pass" in refused.reason
