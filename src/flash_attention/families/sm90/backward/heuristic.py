# SPDX-License-Identifier: Apache-2.0
"""The heuristic of the Hopper backward kernels."""

from __future__ import annotations

import torch

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.rules import CHOICES
from flash_attention.families.sm90.backward.slots import (
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)
from flash_attention.families.sm90.forward.heuristic import NEEDS_HOPPER
from flash_attention.families.values import smallest_holding

FEW_KEYS = 1024  # up to so many, dS is stored at d_head 128
GROUP_HEADS = 8  # heads whose tiles run side by side where tiles differ in length


def heuristic(problem: BackwardProblem, arch: Arch) -> HopperBackwardKernelConfig | str:
    """Return the config for a problem, or why there is none."""
    if why := why_not(problem):
        return why
    config = _config(problem)
    violation = config.broken_rule(arch)
    if violation is None:
        return config
    return NEEDS_HOPPER if violation.rule == "architecture" else violation.message


def why_not(problem: BackwardProblem) -> str | None:
    """Return why Hopper backward kernels do not compute a problem, or None if they do."""
    wanted = problem.wanted
    if not (wanted.dk and wanted.dv):
        return "Hopper backward kernels compute dk and dv together"
    if not smallest_holding(CHOICES["d_head"], problem.d_head, problem.d_v):
        return f"Hopper backward kernels have head dimensions up to {max(CHOICES['d_head'])}"
    return None


def _config(problem: BackwardProblem) -> HopperBackwardKernelConfig:
    d_head = smallest_holding(CHOICES["d_head"], problem.d_head, problem.d_v)
    uneven = problem.causal or problem.window is not None or problem.per_batch
    query_gradient = _query_gradient(problem, d_head)
    wide, adds = d_head == 256, query_gradient is QueryGradient.OWN_WARPGROUP
    order = TileOrder.GROUPED if uneven or wide else TileOrder.ONE_EACH
    derivative, schedule = Derivative.EXACT, Schedule.SPLIT if wide else Schedule.IN_PLACE
    if d_head == 64:
        # Half precision has no room for dP - delta of large gradients where P is small.
        pairs = adds and problem.dtype == torch.bfloat16
        derivative = Derivative.PAIRS if pairs else Derivative.ROUNDED
        schedule = Schedule.PAIRED if adds else Schedule.IN_PLACE
        order = TileOrder.DYNAMIC if adds else order
    elif adds or problem.softcap:
        derivative = Derivative.ROUNDED
    return HopperBackwardKernelConfig(
        DType.from_string(str(problem.dtype)),
        d_head,
        B_r=128 if d_head == 64 and not problem.softcap else 64,  # slopes take registers
        B_c=64 if wide else 128,
        stages=2,
        query_gradient=query_gradient,
        ds_stages=2 if problem.wanted.dq or wide else 0,
        derivative=derivative,
        schedule=schedule,
        tile_order=order,
        group_heads=0 if order is TileOrder.ONE_EACH else GROUP_HEADS,
    )


def _query_gradient(problem: BackwardProblem, d_head: int) -> QueryGradient:
    """Return how dQ is computed. Additions need dq_sum, which is cleared before and converted
    afterwards: for few keys storing dS is faster. A warpgroup for dQ leaves the others no registers
    for the slopes of softcap at d_head 128."""
    if not problem.wanted.dq:
        return QueryGradient.NONE
    if d_head == 128 and (problem.softcap or problem.seq_k <= FEW_KEYS):
        return QueryGradient.WORKSPACE
    if problem.deterministic or d_head == 256:
        return QueryGradient.WORKSPACE
    return QueryGradient.OWN_WARPGROUP
