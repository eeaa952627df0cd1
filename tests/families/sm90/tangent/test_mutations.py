# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted in the kernels for tangents: each is found, or gives wrong numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.errors import LaunchError
from flash_attention.launch.compute import compute_tangent
from tests.emulator.edits import Edit, plant
from tests.families.sm90.tangent.cases import TangentCase, assert_right

pytestmark = pytest.mark.slow  # left out of `make quick`

FOLDER = "sm90/tangent"
CONSUMER, SCHEDULE = f"{FOLDER}/consumer.cuh", f"{FOLDER}/schedule.cuh"
PRODUCER, PRODUCTS = f"{FOLDER}/producer.cuh", f"{FOLDER}/products.cuh"
CAPPED = "a softcap has no slope"
NUMBERS = "is off by|not close"
MUTATIONS = [
    ("K is not waited for", "race|uninitialised", Edit(SCHEDULE, "c.wait_keys();")),
    ("V is not waited for", "race|uninitialised", Edit(SCHEDULE, "c.wait_values();")),
    (
        "K is released early",
        "race|wgmma",
        Edit(SCHEDULE, "wait_products<1>();  // dS is", "wait_products<2>();  // dS is"),
    ),
    ("V is not released", "does not end", Edit(SCHEDULE, "c.release_values();")),
    ("V is released early", "race|wgmma", Edit(SCHEDULE, "c.template wait_products<0>();")),
    ("the stage is not acquired", "race|does not end", Edit(PRODUCER, "to.acquire(ring_);")),
    ("dV has no part", NUMBERS, Edit(PRODUCTS, "accumulate(d_o, p, dv);")),
    ("Q dK^T has no part", NUMBERS, Edit(PRODUCTS, "multiply(ds, q, dk, true);")),
    ("the sums do not grow", NUMBERS, Edit(CONSUMER, "growth_[e / 2] += slope;")),
    ("dO is not rescaled", NUMBERS, Edit(CONSUMER, "attn::rescale_rows(d_o_, stats_);")),
    (
        "the growth is not rescaled",
        NUMBERS,
        Edit(CONSUMER, "growth_[h] *= stats_.shrink[0][h];", ";"),
    ),
    (
        "dS is not scaled",
        NUMBERS,
        Edit(CONSUMER, " * args_.softmax_scale;\n        growth", ";\n        growth"),
    ),
    (CAPPED, NUMBERS, Edit(CONSUMER, "ds_.v[0][j][e] *= Score::slope(s_.v[0][j][e]);", ";")),
    ("nothing is hidden", NUMBERS, Edit(SCHEDULE, "c.mask();")),
]


@pytest.mark.parametrize("name", [mutation[0] for mutation in MUTATIONS])
def test_a_planted_mistake_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught_by, edit = {mutation[0]: mutation[1:] for mutation in MUTATIONS}[name]
    asked = TangentCase("", 200, 400, causal=True, softcap=1.5 * (name == CAPPED)).make()
    plant((edit,), tmp_path, monkeypatch)
    with pytest.raises((AssertionError, LaunchError), match=caught_by):
        assert_right(asked, compute_tangent(asked))
