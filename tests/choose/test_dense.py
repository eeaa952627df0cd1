# SPDX-License-Identifier: Apache-2.0
"""Problems of the backward pass that can be tuned: what they are of, and their kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, BackwardProblem, Wanted
from flash_attention.choose.dense import DenseBackwardProblem, DenseProblem
from flash_attention.choose.heuristic import select_config
from flash_attention.families.config import changed
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import WORKSPACE_VARIABLE
from flash_attention.families.registry import family_called
from flash_attention.families.sm90.backward.slots import QueryGradient
from flash_attention.kernel_configs import DType
from flash_attention_workbench.tune.candidates import heuristic
from tests.workbench.tune.made_up import SM90, dense, dense_backward

ONLY_DQ = Wanted(dk=False, dv=False)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("wanted", [ALL, ONLY_DQ])
def test_a_problem_is_read_back_with_its_gradients(wanted: Wanted, deterministic: bool) -> None:
    problem = BackwardProblem.of_pass(dense(512, causal=True).problem, wanted, deterministic)
    found = DenseProblem.of(problem)
    assert found == dense_backward(512, True, wanted=wanted, deterministic=deterministic)
    assert isinstance(found, DenseBackwardProblem)
    assert found.problem == problem
    assert found.forward == dense(512, causal=True)


def test_what_tables_do_not_hold() -> None:
    problem = dense_backward(512).problem
    nothing = Wanted(dq=False, dk=False, dv=False)
    for other in (
        replace(problem, window=(64, 0)),
        replace(problem, sinks=True, wanted=Wanted(dsinks=True)),
        replace(problem, batch=0),
        replace(problem, wanted=nothing),
    ):
        assert DenseProblem.of(other) is None


def test_passes_are_told_apart_and_sorted() -> None:
    forward, backward = dense(), dense_backward()
    assert forward != backward
    assert forward.kind != backward.kind
    kinds = {
        dense_backward(wanted=wanted, deterministic=deterministic).kind
        for wanted in (ALL, ONLY_DQ)
        for deterministic in (False, True)
    }
    assert len(kinds) == 4
    mixed = [backward, forward, dense_backward(512), dense(512)]
    assert sorted(mixed, key=lambda problem: problem.sort_key) == [
        *(dense(512), forward, dense_backward(512), backward)
    ]


def test_words() -> None:
    assert str(dense_backward(512)) == "BF16 d 128 full, 32 x 512 rows x 16 heads, backward"
    some = dense_backward(512, True, wanted=Wanted(dq=False), deterministic=True)
    assert str(some) == (
        "BF16 d 128 causal, 32 x 512 rows x 16 heads, backward of dk and dv, deterministic"
    )


@pytest.mark.parametrize(
    ("family", "problem", "names"),
    [
        ("sm90", dense_backward(), ["backward_prepare", "hopper_backward", "backward_convert"]),
        (
            "sm90",
            replace(dense_backward(), d_head=256),
            ["backward_prepare", "hopper_backward", "hopper_queries"],
        ),
        ("sm90", dense_backward(deterministic=True), ["backward_prepare", "hopper_backward"]),
        ("sm80", dense_backward(), ["backward_prepare", "backward_bf16", "backward_convert"]),
        (
            "sm80",
            dense_backward(deterministic=True),
            ["backward_prepare", "backward_bf16", "backward_bf16"],
        ),
        ("sm80", dense_backward(wanted=ONLY_DQ), ["backward_prepare", "backward_bf16"]),
    ],
)
def test_all_kernels_of_a_pass_are_its_units(
    family: str, problem: DenseBackwardProblem, names: list[str]
) -> None:
    config = heuristic(problem, SM90, family_called(family, Pass.BACKWARD))
    units = dict.fromkeys(problem.units(config, SM90))
    for unit, name in zip(units, names, strict=True):
        assert unit.name.startswith(name)


def test_a_config_is_refused_for_what_it_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = dense_backward(deterministic=True)
    added, ordered = (heuristic(problem, SM90) for problem in (dense_backward(), repeated))
    stored = changed(added, query_gradient=QueryGradient.WORKSPACE)
    assert stored is not None
    assert repeated.refusal(ordered, SM90) is repeated.refusal(stored, SM90) is None
    assert "adds dq up in any order" in str(repeated.refusal(added, SM90))
    assert dense_backward().refusal(stored, SM90) is None
    assert "needs sm_90" in str(repeated.refusal(stored, ARCHES["sm_80"]))
    monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    long = dense_backward(1 << 17, deterministic=True)
    assert f"set {WORKSPACE_VARIABLE} to at least that" in str(long.refusal(stored, SM90))
    forward = heuristic(dense(), SM90)
    assert dense().refusal(forward, SM90) is None
    assert "torch.bfloat16" in str(dense(dtype=DType.FP16).refusal(forward, SM90))


def test_the_heuristic_is_asked_for_the_pass_of_the_problem() -> None:
    assert select_config(dense_backward().problem, SM90).prefix == "hopper_backward"
    assert select_config(dense_backward().problem, ARCHES["sm_80"]).prefix == "backward"
    assert select_config(dense().problem, SM90).prefix == "hopper"
