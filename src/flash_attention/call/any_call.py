# SPDX-License-Identifier: Apache-2.0
"""AnyCall: a call of any pass, and what calls of all passes have in common."""

from __future__ import annotations

from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.backward_checks import check_backward_call
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentCall, check_tangent_call
from flash_attention.call.tensors import TensorView

AnyCall = Call | BackwardCall | TangentCall


def forward_of(call: AnyCall) -> Call:
    """Return the forward call that a call of any pass is about."""
    return call if isinstance(call, Call) else call.call


def check_any_call(call: AnyCall) -> tuple[Problem, list[TensorView]]:
    """Check a call that kernels are to run. Returns its problem, and views of the tensors that a
    recipe is made for."""
    if isinstance(call, BackwardCall):
        return check_backward_call(call)
    return check_call(call) if isinstance(call, Call) else check_tangent_call(call)
