# SPDX-License-Identifier: Apache-2.0
"""The rules that choose the config of a problem, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.tables import choose_from_tables
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting, workspace_bytes
from flash_attention.families.registry import (
    AnyFamily,
    check_columns,
    families_for,
    family_of,
    pass_of,
)


def choose(
    problem: Problem,
    setting: Setting,
    views: Sequence[TensorView] = (),
    *,
    config: KernelConfig | None = None,
    split_keys: int | None = None,
    may_tune: bool = False,
    mixed: bool | None = None,
) -> Choice:
    """Choose the config that runs a checked problem, unless `config` is given. Raises
    UnsupportedError if no kernel takes the tensors that `views` describe.

    With `may_tune` and inside a `tuning` block, the problem may be tuned first. With `mixed`, the
    sequences with few queries have a kernel of their own wherever they can, and if it is False they
    have none; by default the family decides.
    """
    which = pass_of(problem)
    if which is Pass.BACKWARD:
        workspace_bytes()  # a wrong number is refused, whether the config has a workspace or not
    check_columns(problem)
    if config is not None:
        _refuse_invariance(config, problem)
        family = family_of(config)
        if why := family.refusal(problem, views):
            raise UnsupportedError(why)
        config.check(setting.arch)
        if split_keys is not None:
            split = family.split(config, problem, split_keys)
            setting = replace(setting, split=split)
        return Choice(config, setting, Rule.GIVEN)
    families = families_for(problem, which, views)
    if problem.batch_invariant:
        invariant = select_config(problem, setting.arch, families)
        return Choice(invariant, setting, Rule.BATCH_INVARIANT)
    if which is Pass.FORWARD and split_keys is None:
        for family in families:
            if few := family.few_queries(problem, mixed):
                of_few, of_many = problem.shared(few)
                if decoding := _choose_split(of_few, setting, families, split_keys):
                    others = choose(of_many, setting, views, may_tune=may_tune)
                    return replace(others, few=few, decoding=decoding)
    if split := _choose_split(problem, setting, families, split_keys):
        return split
    return choose_from_tables(problem, setting, families, may_tune=may_tune)


def _choose_split(
    problem: Problem, setting: Setting, families: Sequence[AnyFamily], split_keys: int | None
) -> Choice | None:
    for family in families:
        decode = family.choose_split(problem, setting.arch, setting.num_sms, split_keys)
        if not isinstance(decode, str):
            return Choice(decode[0], replace(setting, split=decode[1]), Rule.DECODE)
    return None


def _refuse_invariance(config: KernelConfig, problem: Problem) -> None:
    if problem.batch_invariant:
        raise UnsupportedError(
            f"batch_invariant is given with config={config.short_form()!r}, and it chooses one"
            " config for all lengths; leave one of them out"
        )
