# SPDX-License-Identifier: Apache-2.0
"""Which kernel a call would run, why, and what it costs, without running it."""

from __future__ import annotations

from flash_attention_workbench.explain.backward import BackwardExplanation, Scratch
from flash_attention_workbench.explain.explanation import Explanation
from flash_attention_workbench.explain.function import explain
from flash_attention_workbench.explain.gpus import Gpu
from flash_attention_workbench.explain.launch import Launch
from flash_attention_workbench.explain.refusals import Refusal
from flash_attention_workbench.explain.work import Work

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
