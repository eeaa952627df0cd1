# SPDX-License-Identifier: Apache-2.0
"""What chose the kernels of a call, and why others were not chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.choice import Choice, Rule
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import AnyFamily, families_for, family_of


@dataclass(frozen=True)
class Refusal:
    """A kind of kernel, and why it was not chosen."""

    kernels: str
    why: str


def refusals_of(
    choice: Choice,
    problem: Problem,
    views: Sequence[TensorView],
    split_keys: int | None,
) -> tuple[Refusal, ...]:
    """List what else was considered: nothing if the caller gave the config."""
    if choice.rule is Rule.GIVEN:
        return ()
    refused = []
    chosen, setting = family_of(choice.config), choice.setting
    for family in families_for(problem, chosen.pass_):
        decode = family.choose_split(problem, setting.arch, setting.num_sms, split_keys)
        if problem.batch_invariant:
            decode = "where keys are split depends on the batch, and batch_invariant is asked for"
        if isinstance(decode, str) and family.splits_keys:
            refused.append(Refusal("split-KV", decode))
        if family is not chosen:
            why = _why_not(family, choice, problem, views)
            refused.append(Refusal(family.config_type.__name__, why))
    return tuple(refused)


def _why_not(
    family: AnyFamily, choice: Choice, problem: Problem, views: Sequence[TensorView]
) -> str:
    if why := family.refusal(problem, views):
        return why
    config = family.heuristic(problem, choice.setting.arch)
    if isinstance(config, str):
        return config
    try:
        family.recipe(config, problem, views, replace(choice.setting, split=None))
    except UnsupportedError as error:
        return str(error)
    return f"it would run, but {_preferred(family, choice)}"


def _preferred(family: AnyFamily, choice: Choice) -> str:
    """Say what was preferred to the kernels of a family."""
    if choice.rule is Rule.TABLE:
        return "a table names another kernel for this problem"
    chosen = family_of(choice.config)
    if chosen.name != family.name:
        return "the kernels of a newer architecture are preferred"
    return f"{chosen.config_type.__name__} kernels are preferred, which {chosen.strength}"


def rule_of(choice: Choice, problem: Problem) -> str:
    """Say what chose the config, and on what grounds."""
    rule: str = choice.rule.value
    if choice.rule is Rule.GIVEN:
        return rule
    if choice.rule is Rule.TABLE:
        return f"{rule}: {choice.reason}"
    if choice.rule is Rule.BATCH_INVARIANT:
        return f"{rule}: one kernel for all lengths"
    config = choice.config
    return f"{rule}: {family_of(config).why(config, problem, choice.setting.split)}"
