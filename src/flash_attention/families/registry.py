# SPDX-License-Identifier: Apache-2.0
"""The registered families, in the order of the ladder. Later ones take precedence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.features import PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentProblem
from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit
from flash_attention.errors import KernelConfigError, UnsupportedError, one
from flash_attention.families.config import KernelConfig, is_config
from flash_attention.families.family import Family
from flash_attention.families.passes import Pass
from flash_attention.families.sm80.backward.family import SM80_BACKWARD
from flash_attention.families.sm80.forward.family import SM80
from flash_attention.families.sm90.backward.family import SM90_BACKWARD
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.families.sm90.fp8.family import SM90_FP8
from flash_attention.families.sm90.mla.family import SM90_MLA
from flash_attention.families.sm90.tangent.family import SM90_TANGENT
from flash_attention.families.sm90.wide.family import SM90_WIDE
from flash_attention.families.sm90.wide_backward.family import SM90_WIDE_BACKWARD

AnyFamily = Family[Any]

FAMILIES: list[AnyFamily] = [
    *(SM80, SM90, SM90_FP8, SM90_WIDE, SM90_MLA),
    *(SM80_BACKWARD, SM90_BACKWARD, SM90_WIDE_BACKWARD),
    SM90_TANGENT,
]


def register(family: AnyFamily) -> None:
    """Register a family. It takes precedence over the families before it."""
    FAMILIES.append(family)


def families_of(which: Pass) -> list[AnyFamily]:
    """Return the families of a pass."""
    return [family for family in FAMILIES if family.pass_ is which]


def config_types(which: Pass) -> str:
    """Name the types of the configs of a pass."""
    types = dict.fromkeys(family.config_type.__name__ for family in families_of(which))
    return " or ".join(map(one, types)) or f"a config of the {which.value} pass"


def check_config_type(config: object, which: Pass = Pass.FORWARD) -> None:
    """Raise KernelConfigError, which names the configs of a pass, unless something is a config."""
    if not is_config(config):
        raise KernelConfigError(
            f"the kernel config is {one(type(config).__name__)}; pass {config_types(which)}, its"
            " short form, or a rung as in 'rung:5'",
            rule="type",
        )


def pass_of(problem: Problem) -> Pass:
    """Return the pass that a problem is of."""
    if isinstance(problem, BackwardProblem):
        return Pass.BACKWARD
    return Pass.TANGENT if isinstance(problem, TangentProblem) else Pass.FORWARD


def families_for(
    problem: Problem, which: Pass, views: Sequence[TensorView] = ()
) -> list[AnyFamily]:
    """Return the families of a pass whose kernels are for problems of this kind, the newest first,
    without those that refuse the tensors. Raises UnsupportedError if all of them do."""
    families = [family for family in reversed(families_of(which)) if family.is_for(problem)]
    if not views:
        return families
    refusals = [family.refusal(problem, views) for family in families]
    if refusals and None not in refusals:
        raise UnsupportedError("; ".join(dict.fromkeys(map(str, refusals))))
    return [family for family, why in zip(families, refusals, strict=True) if why is None]


def check_columns(problem: Problem) -> None:
    """Check that some kernel has the head dimensions of a problem."""
    if any(family.takes_columns(problem.d_head, problem.d_v) for family in FAMILIES):
        return
    most = max(family.widest() for family in FAMILIES)
    for name, d_head in (("q", problem.d_head), ("v", problem.d_v)):
        if d_head > most:
            hints = "".join(family.column_hint(d_head) for family in FAMILIES)
            raise UnsupportedError(
                f"{name} has d_head {d_head}; the kernels take at most {most}{hints}, torch's own"
                " scaled_dot_product_attention takes more"
            )


def check_limits(problem: Problem, views: Sequence[TensorView]) -> None:
    """Raise UnsupportedError, with the answers of the families, if no kernel takes the tensors of a
    problem."""
    check_columns(problem)
    families_for(problem, pass_of(problem), views)


def family_of(config: KernelConfig) -> AnyFamily:
    """Return the family of a config."""
    check_config_type(config)
    for family in FAMILIES:
        if type(config) is family.config_type:
            return family
    raise KernelConfigError(
        f"{type(config).__name__} is of no family that is known here; register its family first",
        rule="type",
    )


def check_pass(config: KernelConfig, which: Pass) -> None:
    """Raise KernelConfigError unless a config is one of a pass."""
    of = family_of(config).pass_
    if of is not which:
        raise KernelConfigError(
            f"{config.short_form()} is a {type(config).__name__}, a config of the {of.value} pass;"
            f" pass {config_types(which)}",
            rule="pass",
        )


def family_called(name: str, which: Pass = Pass.FORWARD) -> AnyFamily:
    """Return the family of a pass with this name, such as "sm80" or "sm_80"."""
    families = families_of(which)
    for family in families:
        if name.replace("_", "") == family.name.replace("_", ""):
            return family
    known = ", ".join(dict.fromkeys(family.name.replace("_", "") for family in families))
    raise UnsupportedError(f"there is no family {name!r}; there are {known}")


def sort_key(config: KernelConfig) -> tuple[int, KernelConfig]:
    """Return a key to sort configs of several families, which do not compare with each other."""
    return FAMILIES.index(family_of(config)), config


def unit_of(config: KernelConfig, features: Features = PLAIN, arch: Arch | None = None) -> Unit:
    """Return the translation unit of a config's kernel, by default for its default architecture."""
    family = family_of(config)
    resolved = family.resolve(config, features)
    return family.unit(config, resolved, arch or config.default_arch)
