# SPDX-License-Identifier: Apache-2.0
"""The masks and scores that have names, in kernels of both passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flash_attention import Function, masks, scores
from tests.functions.cases import Run, in_families, kernels

pytestmark = pytest.mark.slow

QUERIES, KEYS, HEADS = 100, 140, 2
IDS = torch.arange(KEYS, dtype=torch.int32) // 37
IMAGES = torch.where(IDS == 1, 7, -1)
PARENTS = [-1, *((node - 1) // 3 for node in range(1, KEYS))]

MASKS: dict[str, Callable[[str], masks.Mask]] = {
    "causal": lambda on: masks.causal(4),
    "window": lambda on: masks.window(20, 10),
    "left window": lambda on: masks.window(20, None),
    "prefix_lm": lambda on: masks.prefix_lm(30),
    "prefix_lm of batches": lambda on: masks.prefix_lm(torch.tensor([30, 90], device=on)),
    "documents": lambda on: masks.documents(IDS.to(on)),
    "documents of batches": lambda on: masks.documents(torch.stack([IDS, IDS.flip(0)]).to(on)),
    "lengths": lambda on: masks.documents(lengths=torch.tensor([50, 0, 90]).to(on)),
    "sink_window": lambda on: masks.sink_window(5, 20),
    "dilated": lambda on: masks.dilated(7),
    "neighbourhood": lambda on: masks.neighbourhood(12, 2),
    "image_prefix": lambda on: masks.image_prefix(IMAGES.to(on)),
    "tree": lambda on: masks.tree(torch.tensor(PARENTS, device=on)),
    "and, or, not": lambda on: ~masks.dilated(3) & (masks.causal() | masks.window(None, 40)),
}
SCORES: dict[str, Callable[[str], Any]] = {
    "alibi": lambda on: scores.alibi(scores.alibi_slopes(HEADS, on)),
    "alibi of batches": lambda on: scores.alibi(torch.tensor([[0.5, 0.1], [0, -0.1]], device=on)),
    "relative_bias": lambda on: scores.relative_bias(
        torch.linspace(-2, 2, HEADS * 65, device=on).sin().view(HEADS, 65)
    ),
    "additive_bias": lambda on: scores.additive_bias(
        torch.linspace(0, 900, HEADS * QUERIES * KEYS, device=on).sin().view(HEADS, QUERIES, KEYS)
    ),
    "softcap": lambda on: scores.softcap(1.5),
}
BOTH_PASSES = ("documents of batches", "neighbourhood")  # of masks; the others share their walk


def run_of(make: Callable[[str], Function], family: str, device: str) -> Run:
    problem = {"q_lengths": QUERIES, "k_lengths": KEYS, "heads": (HEADS, HEADS), "batch": 2}
    return Run(make, device, problem, *kernels(family))


@pytest.mark.parametrize(("name", "family", "device"), in_families(MASKS, BOTH_PASSES))
def test_masks_are_right(name: str, family: str, device: str) -> None:
    run = run_of(lambda on: Function(mask=MASKS[name](on)), family, device)
    run.check_forward()
    if name in BOTH_PASSES or device == "cuda":
        run.check_backward()


@pytest.mark.parametrize(
    ("name", "family", "device"), in_families(SCORES, ("relative_bias", "softcap"))
)
def test_scores_are_right(name: str, family: str, device: str) -> None:
    run_of(lambda on: Function(SCORES[name](on)), family, device).check()
