# SPDX-License-Identifier: Apache-2.0
"""compute: run a call on the device of its tensors."""

from __future__ import annotations

from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.options import check_switch
from flash_attention.families.given import GivenConfig
from flash_attention.launch.plan import known_plan, plan_for
from flash_attention.launch.strict import check_as_on_a_gpu
from flash_attention.reference.cpu import attention_on_cpu


def compute(
    call: Call, config: GivenConfig | None = None, validate: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a call: with torch on the CPU if there is no config, else with the planned kernel."""
    plan = known_plan(call, config)
    if plan is None:
        if config is None and getattr(call.q, "is_cpu", False):
            check_switch("validate", validate)
            check_as_on_a_gpu(call)
            result, lse = attention_on_cpu(call)
            return result if lse is None else (result, lse)
        plan = plan_for(call, config)
    return plan.run(call, validate)
