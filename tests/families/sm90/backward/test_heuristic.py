# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import MEASURED_ARCH, get_arch
from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.families.sm90.backward.heuristic import heuristic
from tests.families.sm90.backward.cases import config

PROBLEM = BackwardProblem(
    batch=2,
    seq_q=512,
    seq_k=512,
    heads=4,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
)
NO_DQ = Wanted(dq=False)
LONG = {"seq_k": 4096}
STORED = {"dq": "workspace", "derivative": "exact"}
SPLIT = {**STORED, "d_head": 256, "schedule": "split"}
CAPPED = {**LONG, "causal": True, "softcap": 5.0}
ADDED_64 = {"d_head": 64, "derivative": "pairs", "schedule": "paired", "order": "dynamic_8"}


def problem(d_head: int) -> BackwardProblem:
    """A causal problem with many keys."""
    return replace(PROBLEM, d_head=d_head, d_v=d_head, causal=True, seq_q=4096, seq_k=4096)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, {**STORED, "order": "one_each"}),
        (LONG, {"order": "one_each"}),
        ({**LONG, "causal": True}, {}),
        ({**LONG, "window": (5, 5)}, {}),
        ({"window": (5, 5)}, STORED),
        ({"d_head": 64, "d_v": 40}, ADDED_64),
        (
            {"d_head": 64, "d_v": 40, "dtype": torch.float16},
            {**ADDED_64, "dtype": "FP16", "derivative": "rounded"},
        ),
        ({**LONG, "d_head": 72, "causal": True}, {}),
        ({**LONG, "deterministic": True, "causal": True}, STORED),
        (
            {"d_head": 64, "d_v": 64, "deterministic": True, "causal": True},
            {"d_head": 64, "dq": "workspace"},
        ),
        ({"wanted": NO_DQ, "causal": True}, {"dq": "none", "ds": 0, "derivative": "exact"}),
        ({"d_v": 136, "causal": True}, SPLIT),
        ({"d_head": 256}, SPLIT),
        ({"d_head": 256, "causal": True, "wanted": NO_DQ}, {**SPLIT, "dq": "none"}),
        ({**CAPPED, "d_head": 64, "d_v": 64}, {**ADDED_64, "tile": "64, 128"}),
        (
            {**CAPPED, "d_head": 64, "d_v": 64, "deterministic": True},
            {"d_head": 64, "tile": "64, 128", "dq": "workspace"},
        ),
        (CAPPED, {"dq": "workspace"}),
        ({**CAPPED, "wanted": NO_DQ}, {"dq": "none", "ds": 0}),
        ({**CAPPED, "d_head": 256}, {**SPLIT, "derivative": "rounded"}),
    ],
)
def test_choices(change: dict[str, Any], words: dict[str, Any]) -> None:
    assert heuristic(replace(PROBLEM, **change), MEASURED_ARCH) == config(**words)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"d_head": 264}, "Hopper backward kernels have head dimensions up to 256"),
        ({"wanted": Wanted(dv=False)}, "Hopper backward kernels compute dk and dv together"),
    ],
)
def test_refusals(change: dict[str, Any], why: str) -> None:
    assert heuristic(replace(PROBLEM, **change), MEASURED_ARCH) == why


def test_other_architectures_have_other_kernels() -> None:
    why = heuristic(PROBLEM, get_arch("sm_80"))
    assert why == "Hopper kernels need sm_90 (H100, H200)"
