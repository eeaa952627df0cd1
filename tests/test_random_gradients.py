# SPDX-License-Identifier: Apache-2.0
"""Gradients of random problems: on the emulator, by torch on the CPU, on a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.launch.compute import compute_gradients
from tests.devices import DEVICES, HOPPER
from tests.gate import one_in
from tests.random_problems.covering import covering, pairs_of
from tests.random_problems.draw import LARGE, Size
from tests.random_problems.gradients import (
    GRADIENT_FEATURES,
    SMALL,
    GradientProblem,
    draw_gradients,
    gradient_verdict_of,
    make_gradients,
)
from tests.random_problems.problem import RandomProblem
from tests.random_problems.shrink import failing_alike, shrink

pytestmark = pytest.mark.slow  # left out of `make quick`

FAMILIES = ("sm90", "sm80")
DRAWN = 300  # problems of a family
KERNELS = 5  # of a family that every run of the tests compiles, with those that go with them
ON_GPU = 50
SHRINK_TRIES = 50


@cache
def emulated(family: str) -> list[list[GradientProblem]]:
    """Small problems, by kernel."""

    def kernels(asked: GradientProblem) -> list[str]:
        return [step.unit.name for step in make_gradients(asked).plan.recipe.steps]

    drawn = (draw_gradients(seed, SMALL, family) for seed in range(DRAWN))
    return covering(drawn, kernels, GradientProblem.features)


def wrong_with(asked: GradientProblem, device: str = "cpu") -> list[str]:
    """What is wrong with the gradients of a problem, or the error it ends with."""
    try:
        return gradient_verdict_of(make_gradients(asked, device)).wrong
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def assert_right(asked: GradientProblem, device: str = "cpu") -> None:
    wrong = wrong_with(asked, device)
    if wrong:

        def alike(problem: RandomProblem) -> list[str]:
            return wrong_with(replace(asked, problem=problem), device)

        smallest = shrink(asked.problem, failing_alike(wrong, alike), SHRINK_TRIES)
        told = "\n".join(wrong)
        pytest.fail(f"{asked}\n{told}\nsmallest that fails: {smallest}", pytrace=False)


@pytest.mark.parametrize("number", range(KERNELS))
@pytest.mark.parametrize("family", FAMILIES)
def test_emulated_kernels_are_right(family: str, number: int) -> None:
    for asked in emulated(family)[number]:
        assert_right(asked)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_other_emulated_kernels_are_right(family: str, number: int) -> None:
    for problems in emulated(family)[KERNELS + number :: 10]:
        for asked in problems:
            assert_right(asked)


@pytest.mark.parametrize("family", FAMILIES)
def test_few_kernels_have_nearly_every_pair_of_features_that_all_have(family: str) -> None:
    first, rest = emulated(family)[:KERNELS], emulated(family)[KERNELS:]
    missing = pairs_of(rest, GradientProblem.features) - pairs_of(first, GradientProblem.features)
    assert len(missing) < 70  # of more than 500


ONCE_WRONG = [
    RandomProblem(0, seq_q=(0,), seq_k=64, d=16, d_v=88, used=(9,), spare=5),
    RandomProblem(0, seq_q=(7, 0), seq_k=(0, 0), batch=2, sinks=True, return_lse=True, spare=5),
]


@pytest.mark.parametrize("problem", ONCE_WRONG, ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_was_once_wrong_stays_right(problem: RandomProblem, family: str, device: str) -> None:
    wanted = Wanted(dsinks=problem.sinks)
    assert_right(GradientProblem(replace(problem, family=family), wanted), device)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("first", one_in(3, range(0, 300, 100)))
def test_torch_computes_the_same_on_the_cpu(first: int) -> None:
    for seed in range(first, first + 100):
        made = make_gradients(draw_gradients(seed, SMALL))
        assert made.judge(compute_gradients(made.call)).wrong == [], made.asked


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    "family",
    [pytest.param("sm90", marks=HOPPER), pytest.param("sm80", marks=pytest.mark.gpu)],
)
def test_large_problems_are_right_on_a_gpu(family: str, number: int) -> None:
    for seed in range(number, ON_GPU, 10):
        assert_right(draw_gradients(seed, LARGE, family), "cuda")


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=lambda size: size.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_is_drawn(family: str, size: Size) -> None:
    counted = Counter[str]()
    for seed in range(300):
        counted.update(draw_gradients(seed, size, family).features())
    own = {"deterministic", "gradient of lse", "not every gradient"}
    assert set(counted) == GRADIENT_FEATURES | own
    assert {name: count for name, count in counted.items() if count < 3} == {}


def test_a_seed_is_one_problem_and_prints_as_its_own_call() -> None:
    for seed in range(50):
        asked = draw_gradients(seed, SMALL)
        assert asked == draw_gradients(seed, SMALL)
        assert eval(repr(asked)) == asked


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "dsinks"])
def test_one_wrong_element_is_seen(name: str) -> None:
    problem = RandomProblem(0, seq_q=(20, 30), seq_k=(40, 10), batch=2, sinks=True, spare=3)
    made = make_gradients(GradientProblem(problem, Wanted(dsinks=True)))
    right = compute_gradients(made.call)
    assert made.judge(right).wrong == []
    wrong = getattr(right, name).clone()
    wrong.view(-1)[wrong.numel() // 2] += 5
    told = made.judge(right._replace(**{name: wrong})).wrong
    assert [line.partition(":")[0] for line in told] == [name]
    assert made.judge(Gradients()).wrong[0].startswith("wanted: ")


def test_rows_of_no_sequence_are_nan_and_have_gradient_0() -> None:
    problem = RandomProblem(0, seq_q=(20, 30), seq_k=(40, 10), batch=2, spare=3, return_lse=True)
    made = make_gradients(GradientProblem(problem))
    call = made.call
    assert call.dlse is not None
    assert call.call.out is not None
    for loose in (slice(0, 3), slice(53, None)):
        for tensor in (call.do, call.call.out, call.call.q):
            assert tensor[loose].isnan().all()
        assert call.lse[:, loose].isnan().all()
        assert call.dlse[:, loose].isnan().all()
    gradients = made.run()
    assert gradients.dq is not None
    assert not gradients.dq[:3].any()
    assert not gradients.dq[53:].any()
    assert gradients.dq[3:53].any()
