# SPDX-License-Identifier: Apache-2.0
"""Backward passes of random problems with head dimensions over 256."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from flash_attention.call.backward_call import Wanted
from tests.random_problems.draw import Size
from tests.random_problems.gradients import GradientProblem, draw_gradients

WIDTHS = (8, 64, 72, 128, 256, 264, 320, 384, 392, 448, 512)
WANTED = (
    *(Wanted(),) * 3,
    *(Wanted(dv=False), Wanted(dq=False)),
    *(Wanted(dk=False, dv=False), Wanted(dq=False, dv=False), Wanted(dq=False, dk=False)),
)


def wide_gradients(seed: int, size: Size) -> GradientProblem:
    """The backward pass of a seed, with other head dimensions and any of the gradients wanted."""
    random = Random(seed)
    d, d_v = 0, 0
    while max(d, d_v) <= 256:
        d, d_v = random.choice(WIDTHS), random.choice(WIDTHS)
    asked = draw_gradients(seed, size)
    return replace(
        asked,
        problem=replace(asked.problem, d=d, d_v=d_v),
        wanted=random.choice(WANTED)._replace(dsinks=asked.problem.sinks),
    )
