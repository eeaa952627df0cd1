# SPDX-License-Identifier: Apache-2.0
"""Gradients of random problems of wide heads, in the emulator and on a GPU."""

from __future__ import annotations

from functools import cache

import pytest

from flash_attention.families.recipe import WORKSPACE_VARIABLE
from tests.devices import HOPPER
from tests.families.sm90.wide_backward.random_problems import wide_gradients
from tests.random_problems.covering import covering
from tests.random_problems.draw import LARGE, Size
from tests.random_problems.gradients import (
    SMALL,
    GradientProblem,
    gradient_verdict_of,
    make_gradients,
)

DRAWN = 48
TRIED = 4  # of these, in every run of the tests
SEVERAL_TILES = Size("gradients of several tiles", 300, 2, 2, 1 << 16, 10, (1, 2, 3, 4))


@cache
def problems() -> list[GradientProblem]:
    """Hardly two share all kernels; first come those that have most in common with the others."""

    def kernels(asked: GradientProblem) -> list[str]:
        return [step.unit.name for step in make_gradients(asked).plan.recipe.steps]

    sizes = (SMALL, SEVERAL_TILES)
    drawn = (wide_gradients(seed, sizes[seed % 2]) for seed in range(DRAWN))
    return [
        asked for group in covering(drawn, kernels, GradientProblem.features) for asked in group
    ]


def assert_right(asked: GradientProblem, device: str) -> None:
    made = make_gradients(asked, device)
    assert type(made.plan.config).__name__ == "HopperWideBackwardKernelConfig"
    assert gradient_verdict_of(made).wrong == [], asked


def least_workspace(asked: GradientProblem) -> int:
    """The MiB of P and dS of 128 keys, so that every part of the work is as small as can be."""
    rows = -(-max(asked.problem.lengths_q) // 128) * 128 * asked.problem.group
    return max(1, -(-rows * 128 * 4 // 2**20))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [n if n < TRIED else pytest.param(n, marks=pytest.mark.exhaustive) for n in range(DRAWN)],
)
def test_random_problems_are_right(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 2:
        monkeypatch.setenv(WORKSPACE_VARIABLE, "1")
    assert_right(problems()[number], "cpu")


@HOPPER
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("tens", range(5))
def test_large_random_problems_are_right(
    tens: int, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        asked = wide_gradients(seed, LARGE)
        if in_parts:
            monkeypatch.setenv(WORKSPACE_VARIABLE, str(least_workspace(asked)))
        assert_right(asked, "cuda")
