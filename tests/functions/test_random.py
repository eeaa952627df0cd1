# SPDX-License-Identifier: Apache-2.0
"""Random functions in kernels of both passes: some alone, some four at a time, a head each, which
takes half the time of compiling them alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.devices import HOPPER
from tests.functions.cases import BACKWARD, FORWARD, Run, kernels, random_functions
from tests.program.grammar import Sizes

pytestmark = pytest.mark.slow

TOGETHER = 4
SMALL = Sizes(batch=2, heads=TOGETHER, queries=100, keys=140)
LARGE = Sizes(batch=2, heads=TOGETHER, queries=700, keys=900)
ALONE = range(1000, 1012)
GROUPS = range(0, 12 * TOGETHER, TOGETHER)
BOTH_PASSES = (*ALONE[:3], *GROUPS[:1])


def run_of(seed: int, sizes: Sizes, device: str = "cpu") -> Run:
    count = 1 if seed in ALONE else TOGETHER
    problem = {
        "q_lengths": sizes.queries,
        "k_lengths": sizes.keys,
        "batch": sizes.batch,
        "heads": (sizes.heads, 2),
        "d": (32, 32) if device == "cpu" else (64, 64),
    }
    configs = (FORWARD.format(32), BACKWARD.format(32)) if device == "cpu" else (None, None)
    return Run(random_functions(seed, sizes, count), device, problem, *configs)


@pytest.mark.parametrize("seed", [*ALONE, *GROUPS])
def test_random_functions_are_right(seed: int) -> None:
    """Sixty functions, twelve of them alone; seven in the backward pass, too."""
    run = run_of(seed, SMALL)
    run.check_forward()
    if seed in BOTH_PASSES:
        run.check_backward()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [seed for seed in (*ALONE, *GROUPS) if seed not in BOTH_PASSES])
def test_gradients_of_random_functions_are_right(seed: int) -> None:
    run_of(seed, SMALL).check_backward()


@HOPPER
@pytest.mark.parametrize("seed", [*ALONE, *range(0, 72 * TOGETHER, TOGETHER)])
def test_large_random_functions_are_right(seed: int) -> None:
    """Three hundred functions."""
    run_of(seed, LARGE, "cuda").check()


@pytest.mark.parametrize("seed", [ALONE[0], GROUPS[0]])
def test_random_functions_are_right_in_sm_80_kernels(seed: int) -> None:
    forward, backward = kernels("sm_80")
    replace(run_of(seed, SMALL), forward=forward, backward=backward).check()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [*ALONE, *GROUPS])
def test_large_random_functions_are_right_in_sm_80_kernels(seed: int) -> None:
    forward, backward = kernels("sm_80")
    replace(run_of(seed, LARGE, "cuda"), forward=forward, backward=backward).check()
