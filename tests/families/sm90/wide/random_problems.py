# SPDX-License-Identifier: Apache-2.0
"""Random problems with head dimensions that only kernels for wide heads have."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from flash_attention.families.sm90.mla.d_heads import is_mla
from tests.random_problems.draw import Size, draw
from tests.random_problems.problem import RandomProblem

WIDTHS = (8, 64, 128, 256, 264, 320, 384, 448, 512, 512)


def wide_problem(seed: int, size: Size) -> RandomProblem:
    """The problem of a seed, with other head dimensions."""
    random = Random(seed)
    while True:
        d, d_v = random.choice(WIDTHS), random.choice(WIDTHS)
        if max(d, d_v) > 256 and not is_mla(d, d_v):
            return replace(draw(seed, size, "sm90"), d=d, d_v=d_v)
