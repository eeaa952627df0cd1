# SPDX-License-Identifier: Apache-2.0
"""The recipes of the family: its kernels, their grids, and their memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.call.dtype import DType
from flash_attention.errors import UnsupportedError
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Recipe
from flash_attention.families.registry import families_of, family_of
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.family import SM80_BACKWARD
from tests.families.problems import backward_views_of, recipe_of

CONFIG = FlashBackwardKernelConfig(DType.FP16, 64, 64, 128, 8)
PROBLEM = BackwardProblem(
    *(3, 200, 300, 6, 2, 64, 40), dtype=torch.float16, softmax_scale=0.1, sinks=True
)


def recipe(problem: BackwardProblem, config: FlashBackwardKernelConfig = CONFIG) -> Recipe:
    return recipe_of(
        config, problem, views=backward_views_of(problem), arch=ARCHES["sm_90"], num_sms=132
    )


def kernels(problem: BackwardProblem) -> list[str]:
    names = [step.unit.name for step in recipe(problem).steps]
    return [name.removeprefix("backward_").split("_")[0] for name in names]


def test_it_is_the_fallback_of_the_backward_pass() -> None:
    assert families_of(Pass.BACKWARD)[0] is SM80_BACKWARD
    assert family_of(CONFIG) is SM80_BACKWARD


@pytest.mark.parametrize(
    ("wanted", "deterministic", "expected"),
    [
        (Wanted(), False, ["prepare", "fp16", "convert"]),
        (Wanted(dsinks=True), False, ["prepare", "fp16", "convert", "sink"]),
        (Wanted(), True, ["prepare", "fp16", "fp16"]),
        (Wanted(dq=False), False, ["prepare", "fp16"]),
        (Wanted(dk=False, dv=False), False, ["prepare", "fp16"]),
        (Wanted(False, False, False, dsinks=True), False, ["prepare", "sink"]),
    ],
)
def test_the_kernels_of_a_pass(wanted: Wanted, deterministic: bool, expected: list[str]) -> None:
    problem = replace(PROBLEM, wanted=wanted, deterministic=deterministic)
    assert kernels(problem) == expected
    sums = recipe(problem).scratch.get("dq_sum", 0)
    assert sums == (4 * 6 * 3 * 256 * 64 if "convert" in expected else 0)


def test_a_grid_has_keys_of_heads_of_k_or_queries_of_heads_of_q() -> None:
    problem = replace(PROBLEM, deterministic=True)
    keys, queries = recipe(problem).steps[1:]
    assert keys.geometry.grid == (3, 2, 3)
    assert queries.geometry.grid == (2, 6, 3)
    assert {keys.geometry.block, queries.geometry.block} == {256}
    assert keys.geometry.smem_bytes > queries.geometry.smem_bytes


def test_the_order_of_the_sums_follows_the_additions() -> None:
    def order(config: FlashBackwardKernelConfig) -> str:
        return recipe(PROBLEM, config).steps[-1].unit.name.rsplit("_", 1)[-1]

    assert order(CONFIG) == "byvalue"
    assert order(replace(CONFIG, vector_additions=True)) == "bylane"


def test_no_grid_is_empty() -> None:
    problem = replace(PROBLEM, seq_q=0, seq_k=0, total_q=0, total_k=0)
    assert all(prod(step.geometry.grid) for step in recipe(problem).steps)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": torch.bfloat16}, "the kernel config is for torch.float16"),
        ({"d_v": 72}, "v has d_head 72"),
        ({"batch": 65536}, "batch is 65536; a launch takes at most 65535"),
        ({"heads": 65536}, "heads is 65536"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        recipe(replace(PROBLEM, **change))
