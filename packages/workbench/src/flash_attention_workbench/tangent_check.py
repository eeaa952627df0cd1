# SPDX-License-Identifier: Apache-2.0
"""The part of `check` that looks at tangents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.tangent_call import TangentCall, WithTangent, check_tangent_call
from flash_attention.families.given import GivenConfig
from flash_attention.families.readable import tangent_call_of
from flash_attention.launch.plans import plan_for
from flash_attention.reference.composite import attention_by_composition
from flash_attention.reference.judge import Check
from flash_attention.reference.tangent_judge import TangentJudge, random_tangents


@dataclass(frozen=True)
class TangentReport:
    """The errors of a call's tangents against the float64 oracle."""

    heads: tuple[int, ...]  # the checked heads of q; the others may not contain NaN
    checks: Mapping[str, Check]  # by the name of the result

    @property
    def ok(self) -> bool:
        """Whether all tangents pass."""
        return all(check.ok for check in self.checks.values())


def with_random_tangents(call: Call) -> TangentCall:
    """Return a call whose q, k and v have normally distributed tangents."""
    return tangent_call_of(TangentCall(call, *random_tangents(*call[:3])))


def results_with_tangents(
    asked: TangentCall, config: GivenConfig | None, *, emulate: bool, by_torch: str
) -> tuple[WithTangent, str]:
    """Run a call with tangents. Returns its results and what computed them; `by_torch` is what to
    say where torch does."""
    q = asked.call.q
    if config is None and not emulate and q.is_cpu:
        check_tangent_call(asked)
        return _by_torch(asked), by_torch
    plan = plan_for(asked, config)
    where = "the emulator" if q.is_cpu else torch.cuda.get_device_name(q.device)
    return plan.run(asked), f"{plan.config.short_form()}, on {where}"


def _by_torch(asked: TangentCall) -> WithTangent:
    call, *tangents = asked

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return attention_by_composition(call._replace(q=q, k=k, v=v))

    jvp: Callable[..., Any] = torch.func.jvp
    results, moved = jvp(attend, tuple(call[:3]), tuple(tangents))
    return WithTangent(*results, *moved)


def check_tangents(asked: TangentCall, found: WithTangent, *, scores: int) -> TangentReport:
    """Judge the tangents of the results of a call."""
    judge = TangentJudge(asked, scores=scores)
    checks = judge.check(found)
    return TangentReport(tuple(judge.heads), {n: c for n, c in checks.items() if n != "o"})
