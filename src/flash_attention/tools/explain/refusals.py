# SPDX-License-Identifier: Apache-2.0
"""The kernels that were not chosen for a call, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.call import Options
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.decision import Decision, Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.families import fit as fit_checks
from flash_attention.families.sm90.forward.config import HOPPER
from flash_attention.families.sm90.forward.short_queries import chunks_or_why_not
from flash_attention.kernel_configs import FlashForwardKernelConfig, HopperForwardKernelConfig

SELECTED_LATER = "it would run; what runs of the other family is selected first"


@dataclass(frozen=True)
class Refusal:
    """A kind of kernel, and why it is not the one."""

    kernels: str
    why: str


def refusals_of(
    decision: Decision,
    problem: Problem,
    views: Sequence[TensorView],
    options: Options,
    num_sms: int,
) -> tuple[Refusal, ...]:
    """What else was considered; nothing is where the caller gave the config."""
    if decision.rule is Rule.GIVEN:
        return ()
    refused = []
    short = chunks_or_why_not(problem, decision.arch, num_sms, options.split_keys)
    if isinstance(short, str):
        refused.append(Refusal("keys in chunks", short))
    if not isinstance(decision.config, HopperForwardKernelConfig):
        why = _why_not_hopper(problem, decision.arch)
        refused.append(Refusal(HopperForwardKernelConfig.__name__, why))
    if not isinstance(decision.config, FlashForwardKernelConfig):
        why = _why_not_first_family(problem, views)
        refused.append(Refusal(FlashForwardKernelConfig.__name__, why))
    return tuple(refused)


def _why_not_hopper(problem: Problem, arch: Arch) -> str:
    try:
        violation = select_config(problem, HOPPER).broken_rule(arch)
    except UnsupportedError as error:
        return str(error)
    return SELECTED_LATER if violation is None else violation.message


def _why_not_first_family(problem: Problem, views: Sequence[TensorView]) -> str:
    """Its rules, applied to what an architecture without the other family gets."""
    try:
        fit_checks.check_config_fits(select_config(problem, DEFAULT_ARCH), problem, views)
    except UnsupportedError as error:
        return str(error)
    return SELECTED_LATER
