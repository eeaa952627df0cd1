# SPDX-License-Identifier: Apache-2.0
"""Random problems: on the emulator, by torch on the CPU, on a GPU; and that they are drawn well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.devices import DEVICES, HOPPER
from tests.gate import one_in
from tests.random_problems.call import GUARD, RandomCall, make, verdict_of
from tests.random_problems.covering import covering, pairs_of
from tests.random_problems.draw import LARGE, SMALL, Size, draw, kinds
from tests.random_problems.problem import (
    FEATURES,
    FIRST_FAMILY_FEATURES,
    SIMPLER,
    RandomProblem,
    without,
)
from tests.random_problems.shrink import failing_alike, shrink

pytestmark = pytest.mark.slow  # left out of `make quick`

FAMILIES = ("sm90", "sm80")
DRAWN = 300  # problems of a family
KERNELS = 8  # of a family that every run of the tests compiles
ON_GPU = 50
SHRINK_TRIES = 100


def drawn(size: Size, family: str, count: int) -> list[RandomProblem]:
    """Problems of the first seeds."""
    return [draw(seed, size, family) for seed in range(count)]


@cache
def emulated(family: str) -> list[list[RandomProblem]]:
    """Small problems, by kernel."""

    def kernels(problem: RandomProblem) -> list[str]:
        return [step.unit.name for step in make(problem).plan().recipe.steps]

    return covering(drawn(SMALL, family, DRAWN), kernels, RandomProblem.features)


def wrong_with(problem: RandomProblem, device: str = "cpu") -> list[str]:
    """What is wrong with the results of a problem, or the error it ends with."""
    try:
        return verdict_of(make(problem, device)).wrong
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def assert_right(problem: RandomProblem, device: str = "cpu") -> None:
    wrong = wrong_with(problem, device)
    if wrong:
        fails = failing_alike(wrong, lambda p: wrong_with(p, device))
        smallest = shrink(problem, fails, SHRINK_TRIES)
        told = "\n".join(wrong)
        pytest.fail(f"{problem}\n{told}\nsmallest that fails: {smallest}", pytrace=False)


@pytest.mark.parametrize("number", range(KERNELS))
@pytest.mark.parametrize("family", FAMILIES)
def test_emulated_kernels_are_right(family: str, number: int) -> None:
    for problem in emulated(family)[number]:
        assert_right(problem)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_other_emulated_kernels_are_right(family: str, number: int) -> None:
    for problems in emulated(family)[KERNELS + number :: 10]:
        for problem in problems:
            assert_right(problem)


@pytest.mark.parametrize("family", FAMILIES)
def test_few_kernels_have_nearly_every_pair_of_features_that_all_have(family: str) -> None:
    first, rest = emulated(family)[:KERNELS], emulated(family)[KERNELS:]
    missing = pairs_of(rest, RandomProblem.features) - pairs_of(first, RandomProblem.features)
    assert len(missing) < 50  # of more than 500


ONCE_WRONG = [
    RandomProblem(seed=1363, seq_q=(0,), seq_k=1, d=8, d_v=8, family="sm80", spare=5),
    RandomProblem(seed=1363, seq_q=(0,), seq_k=1, d=8, d_v=8, spare=5),
]


@pytest.mark.parametrize("problem", ONCE_WRONG, ids=repr)
@pytest.mark.parametrize("device", DEVICES)
def test_what_was_once_wrong_stays_right(problem: RandomProblem, device: str) -> None:
    assert_right(problem, device)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("first", one_in(3, range(0, 600, 100)))
def test_torch_computes_the_same_on_the_cpu(first: int) -> None:
    for seed in range(first, first + 100):
        call = make(draw(seed, SMALL))
        assert call.judge(*call.run_by_torch()).wrong == [], call.problem


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    "family",
    [pytest.param("sm90", marks=HOPPER), pytest.param("sm80", marks=pytest.mark.gpu)],
)
def test_large_problems_are_right_on_a_gpu(family: str, number: int) -> None:
    for problem in drawn(LARGE, family, ON_GPU)[number::10]:
        assert_right(problem, "cuda")


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=lambda size: size.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_is_drawn(family: str, size: Size) -> None:
    counted = Counter[str]()
    for seed in range(300):
        counted.update(draw(seed, size, family).features())
    allowed = frozenset(FEATURES) if family == "sm90" else FIRST_FAMILY_FEATURES
    assert set(counted) == allowed
    assert {name: count for name, count in counted.items() if count < 5} == {}


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=lambda size: size.name)
def test_the_menu_has_every_value_of_every_column(size: Size) -> None:
    menu = kinds(size)
    assert len(menu) == size.kinds
    for values in zip(*(vars(kind).values() for kind in menu), strict=True):
        counts = Counter(values).values()
        assert min(counts) * 8 > max(counts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_is_one_problem_within_bounds_that_prints_as_its_own_call(family: str) -> None:
    for size in (SMALL, LARGE):
        for seed in range(200):
            problem = draw(seed, size, family)
            assert problem == draw(seed, size, family)
            assert eval(repr(problem)) == problem
            assert problem.scores <= max(size.scores, 128 * 128 * problem.heads)
            assert max(*problem.lengths_q, *problem.lengths_k) <= size.longest + 256
    assert len({draw(seed, SMALL, family) for seed in range(200)}) == 200


def test_the_same_seed_gives_the_same_tensors() -> None:
    for seed in range(20):
        first, second = (make(draw(seed, SMALL)) for _ in range(2))
        for name in ("q", "k", "v"):
            pair = (getattr(call, name).nan_to_num(nan=99.0) for call in (first, second))
            assert torch.equal(*pair)


@cache
def first_drawn() -> list[RandomProblem]:
    return drawn(SMALL, "sm90", DRAWN)


@pytest.mark.parametrize("name", SIMPLER)
def test_a_feature_can_be_left_out(name: str) -> None:
    having = [problem for problem in first_drawn() if FEATURES[name](problem)]
    assert having
    for problem in having[:3]:
        changed = without(problem, frozenset((name,)))
        assert name not in changed.features()
        make(changed)


PLANTED: list[tuple[Callable[[RandomProblem], bool], RandomProblem]] = [
    (
        lambda p: p.causal and max(p.lengths_k) > 37,
        RandomProblem(0, seq_q=0, seq_k=38, d=8, d_v=8, causal=True),
    ),
    (
        lambda p: p.used is not None and 0 < min(p.used) < 9 and p.group > 2,
        RandomProblem(0, seq_q=0, seq_k=1, group=3, d=8, d_v=8, used=(1,)),
    ),
    (
        lambda p: p.page == 24 and p.d_v >= 40 and p.layout == "gaps",
        RandomProblem(0, seq_q=0, seq_k=0, d=8, d_v=40, used=(0,), page=24, layout="gaps"),
    ),
]


@pytest.mark.parametrize(("fails", "smallest"), PLANTED)
def test_a_planted_failure_is_made_as_small_as_it_can_be(
    fails: Callable[[RandomProblem], bool], smallest: RandomProblem
) -> None:
    found = [p for p in (draw(seed, LARGE) for seed in range(2000)) if fails(p)]
    assert found
    for problem in found[:10]:
        assert replace(shrink(problem, fails), seed=0) == smallest


def spoiled(call: RandomCall, spoil: Callable[[RandomCall], None]) -> list[str]:
    out, lse = call.run_by_torch()
    spoil(replace(call, out=out))
    return call.judge(out, lse).wrong


def shift(call: RandomCall) -> None:
    assert call.out is not None
    call.out[..., -1, -1, -1] += 0.1 * call.v.nan_to_num().abs().max()


def write_beside(call: RandomCall) -> None:
    assert call.room is not None
    call.room[..., -1, -1, -1] = GUARD + 1


@pytest.mark.parametrize("values", ["normal", "large", "rising"])
def test_one_wrong_element_is_seen(values: str) -> None:
    problem = RandomProblem(0, seq_q=50, seq_k=70, values=values, out="guarded", return_lse=True)
    assert spoiled(make(problem), lambda _: None) == []
    assert "output" in spoiled(make(problem), shift)[0]
    assert "around out" in spoiled(make(problem), write_beside)[0]
