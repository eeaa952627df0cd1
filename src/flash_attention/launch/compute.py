# SPDX-License-Identifier: Apache-2.0
"""compute: what a call asks for, on whatever device it is."""

from __future__ import annotations

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.lengths import check_lengths
from flash_attention.families.config import KernelConfig
from flash_attention.launch.plan import plan_for
from flash_attention.reference.cpu import attention_on_cpu


def compute(
    call: Call, config: KernelConfig | None = None, validate: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """By torch on the CPU, unless there is a config; else by the kernel that is planned for."""
    if config is None and getattr(call.q, "is_cpu", False):
        result, lse = attention_on_cpu(call)
        return result if lse is None else (result, lse)
    plan = plan_for(call, config)
    if validate:
        check_lengths(plan.problem, call)
    return plan.run(call)
