# SPDX-License-Identifier: Apache-2.0
"""Calls that kernels for wide heads run, and configs of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Choice, Rule
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.recipe import Setting
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch import plan as plans
from flash_attention.launch.plan import Plan
from tests.feature_cases import CASES as FEATURE_CASES
from tests.feature_cases import Case, MadeCase


def config(text: str) -> HopperWideKernelConfig:
    """The config with a short form without its prefix."""
    parsed = parse_kernel_config(f"hopper_wide{text}")
    assert isinstance(parsed, HopperWideKernelConfig)
    return parsed


NARROW = config("(BF16, 128, 128): lazy_8")  # like the others, but faster to emulate
MIDDLE = config("(BF16, 256, 256): lazy_8")
EVERY_BLOCK = config("(BF16, 128, 128): plain")
FULL = config("(BF16, 512, 512): lazy_8")
FULL_FP16 = config("(FP16, 512, 512): lazy_8")


def holding(case: Case) -> HopperWideKernelConfig:
    """A small config that runs a case."""
    return NARROW if max(case.d_qk, case.d_v) <= NARROW.d_head else MIDDLE


def stream_k(call: Call, config: HopperWideKernelConfig, ctas: int) -> Plan:
    """The plan of a call whose keys are split evenly among so many CTAs."""

    def choose(problem: Problem, setting: Setting, *given: Any, **asked: Any) -> Choice:
        splits = KvSplits.even(problem, config.B_c, ctas, 1)
        return Choice(config, replace(setting, split=splits), Rule.GIVEN)

    with patch.object(plans, "choose", choose):
        return Plan(call, config)


def sharp(made: MadeCase) -> MadeCase:
    """The case with maxima of rows that keep rising, from the last key to the first."""
    q, k = made.q * 6, made.k.clone()
    k *= torch.linspace(1.5, 0.5, k.shape[-3], device=k.device)[:, None, None].to(k.dtype)
    return replace(made, q=q, k=k)


OTHER_CASES = [
    Case("one key", 3, 1),
    Case("two blocks", 64, 128),
    Case("three blocks", 64, 192, causal=True),
    Case("several tiles of several heads", 200, 200, heads=6, heads_k=2, batch=2, causal=True),
    Case("a group of 80 heads", 2, 70, heads=80, heads_k=1),
    Case("d 128 and d_v 8", 70, 70, 128, 8),
    Case("d 8 and d_v 128", 70, 70, 8, 128),
]
CASES = [*FEATURE_CASES, *OTHER_CASES]

WIDE_CASES = [
    Case("d 512", 100, 200, 512, 512, heads=2, heads_k=1, causal=True),
    Case("d 512, packed", (70, 1, 20), (70, 65, 20), 512, 512, heads=2, heads_k=1, causal=True),
    Case("d 512 of a cache", 2, 200, 512, 512, batch=2, used=(200, 65), heads=8, heads_k=2),
    Case("d 512 and d_v 8", 65, 130, 512, 8, heads=1, heads_k=1, window=(30, 5)),
    Case("d 8 and d_v 512", 65, 130, 8, 512, heads=1, heads_k=1, softcap=3.0),
    Case("d 264", 65, 130, 264, 264, heads=1, heads_k=1, sinks=True),
    Case("d 320 and d_v 256 of two heads", 65, 70, 320, 256, heads=2, heads_k=2),
    Case("d 448 and d_v 384, packed", (65,), (70,), 448, 384, heads=1, heads_k=1),
    Case("d 128 and d_v 264", 65, 70, 128, 264, heads=1, heads_k=1),
]
"""Calls whose head dimensions only these kernels have."""
