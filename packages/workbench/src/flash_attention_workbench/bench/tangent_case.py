# SPDX-License-Identifier: Apache-2.0
"""A point of a grid with tangents: our contenders, one of torch, and the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.call.call import Call
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from flash_attention.reference.tangent_judge import TangentJudge, random_tangents
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.gradient_case import poison
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.peers.torch_sdpa import check_sdpa
from flash_attention_workbench.bench.timing import Contender


@dataclass(frozen=True, eq=False)
class TangentCase:
    """One problem in memory, with tangents of its tensors."""

    case: Case
    call: TangentCall

    @classmethod
    def of(cls, point: Point, dtype: DType, device: torch.device | str = "cpu") -> TangentCase:
        """Normally distributed q, k, v and tangents."""
        case = Case.of(point, dtype, device)
        call = Call(case.q, case.k, case.v, **case.keywords)
        return cls(case, TangentCall(call, *random_tangents(*call[:3])))

    def plan(self) -> Plan:
        """What a call in forward mode launches."""
        return plan_for(self.call)

    def contender(self, name: str, config: KernelConfig | None = None) -> Contender:
        """Return the contender that launches the kernel of a config, or the one that is chosen."""
        return tangent_contender(name, self.call, config)

    def by_torch(self, name: str) -> Contender:
        """Return torch's own derivative, of a composition that stores all scores."""
        check_sdpa(self.case)
        point, jvp = self.case.point, torch.func.jvp
        shared = point.kv_heads != point.heads

        def attend(*qkv: Tensor) -> Tensor:
            q, k, v = (tensor.transpose(1, 2) for tensor in qkv)
            with sdpa_kernel(SDPBackend.MATH):
                out = scaled_dot_product_attention(
                    q, k, v, is_causal=point.causal, enable_gqa=shared
                )
            return out.transpose(1, 2)

        def run() -> Any:
            return jvp(attend, tuple(self.call.call[:3]), tuple(self.call[1:]))

        return Contender(name, run)

    def judge(self) -> TangentJudge:
        return TangentJudge(self.call)


def tangent_contender(
    name: str, call: TangentCall, config: KernelConfig | None = None
) -> Contender:
    """Return the contender that launches the kernel of a call with tangents, and nothing else."""
    plan = plan_for(call, config)
    if not plan.launches:
        return Contender(name, lambda: plan.run(call))
    arguments, found = plan.prepare(call)

    def run() -> WithTangent:
        plan.launch(call, arguments, found)
        return found

    return Contender(name, run, poison=lambda: poison(found))
