# SPDX-License-Identifier: Apache-2.0
"""What chose the kernels of a call, and why others were not chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.decision import Decision, Rule
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import AnyFamily, families_for, family_of


@dataclass(frozen=True)
class Refusal:
    """A kind of kernel, and why it was not chosen."""

    kernels: str
    why: str


def refusals_of(
    decision: Decision,
    problem: Problem,
    views: Sequence[TensorView],
    num_sms: int,
    split_keys: int | None,
) -> tuple[Refusal, ...]:
    """List what else was considered: nothing if the caller gave the config."""
    if decision.rule is Rule.GIVEN:
        return ()
    refused = []
    chosen = family_of(decision.config)
    for family in families_for(problem, chosen.pass_):
        short = family.choose_split(problem, decision.arch, num_sms, split_keys)
        if isinstance(short, str) and family.splits_keys:
            refused.append(Refusal("split-KV", short))
        if family is not chosen:
            why = _why_not(family, decision, problem, views, num_sms)
            refused.append(Refusal(family.config_type.__name__, why))
    return tuple(refused)


def _why_not(
    family: AnyFamily,
    decision: Decision,
    problem: Problem,
    views: Sequence[TensorView],
    num_sms: int,
) -> str:
    config = family.heuristic(problem, decision.arch)
    if isinstance(config, str):
        return config
    try:
        family.recipe(config, problem, views, Setting(decision.arch, num_sms))
    except UnsupportedError as error:
        return str(error)
    return f"it would run, but {_preferred(family, decision)}"


def _preferred(family: AnyFamily, decision: Decision) -> str:
    """Say what was preferred to the kernels of a family."""
    if decision.rule is Rule.TABLE:
        return "a table names another kernel for this problem"
    chosen = family_of(decision.config)
    if chosen.name != family.name:
        return "the kernels of a newer architecture are preferred"
    return f"{chosen.config_type.__name__} kernels are preferred, which {chosen.strength}"


def rule_of(decision: Decision, problem: Problem) -> str:
    """Say what chose the config, and on what grounds."""
    rule: str = decision.rule.value
    if decision.rule is Rule.GIVEN:
        return rule
    if decision.rule is Rule.TABLE:
        return f"{rule}: {decision.reason}"
    config = decision.config
    return f"{rule}: {family_of(config).why(config, problem, decision.split)}"
