# SPDX-License-Identifier: Apache-2.0
"""Which kernel a call would run, why, and what it costs, without running it."""

from __future__ import annotations

from flash_attention.tools.explain.backward import BackwardExplanation, Scratch
from flash_attention.tools.explain.explanation import Explanation
from flash_attention.tools.explain.function import explain
from flash_attention.tools.explain.gpus import Gpu
from flash_attention.tools.explain.launch import Launch
from flash_attention.tools.explain.refusals import Refusal
from flash_attention.tools.explain.work import Work

__all__ = [
    "BackwardExplanation",
    "Explanation",
    "Gpu",
    "Launch",
    "Refusal",
    "Scratch",
    "Work",
    "explain",
]
