# SPDX-License-Identifier: Apache-2.0
"""Kernel configs: what is chosen at compile time, what is valid, and the sets worth building."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.call.tangent_call import TangentProblem
from flash_attention.call.tensors import TensorView
from flash_attention.errors import KernelConfigError, UnsupportedError, quoted
from flash_attention.families.config import KernelConfig, is_config
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.parse import parse_kernel_config, parse_kernel_name
from flash_attention.families.passes import Pass
from flash_attention.families.registry import (
    AnyFamily,
    check_limits,
    check_pass,
    families_for,
    families_of,
    pass_of,
    sort_key,
)
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.tangent.config import HopperTangentKernelConfig
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.families.values import Violation, smallest_holding
from flash_attention.ladder import LADDER_D_HEADS, get_ladder, pick_rung

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "GivenConfig",
    "HopperForwardKernelConfig",
    "HopperFp8KernelConfig",
    "HopperMlaKernelConfig",
    "HopperTangentKernelConfig",
    "HopperWideKernelConfig",
    "KernelConfig",
    "TileOrder",
    "Violation",
    "as_kernel_config",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_kernel_config",
    "parse_kernel_name",
    "should_autotune_config",
    "sort_key",
]

LENGTHS = (512, 8192)  # of usual problems
TOKENS = 16384  # of a batch of them
HEADS = 16
USUAL_D_HEADS = (64, 128, 256)
WIDEST_D_HEAD = 512  # of 16 bits, besides MLA
_RUNG = re.compile(r"\s*rung\s*:\s*(.*?)\s*")
SET_VARIABLE = "FLASH_ATTENTION_KERNELS"


def as_kernel_config(
    given: object,
    *,
    dtype: DType = DType.FP16,
    d_head: int = 128,
    n_heads: int = 16,
    pass_: Pass = Pass.FORWARD,
) -> KernelConfig:
    """Convert a config in any form to a KernelConfig.

    - `given`: a config, its short form, a rung such as "rung:5", or an object with the thirteen
      fields of a FlashForwardKernelConfig.
    - `dtype`, `d_head`, `n_heads`, `pass_`: select the ladder of a rung.

    Raises KernelConfigError or UnsupportedError if `given` is none of these.
    """
    rung = _RUNG.fullmatch(given) if isinstance(given, str) else None
    if rung is None:
        return read_config(given, pass_)
    if not re.fullmatch("[0-9]{1,4}", rung[1]):
        raise UnsupportedError(f"{given} names no rung; write rung:16")
    return pick_rung(get_ladder(dtype, d_head, n_heads, pass_), int(rung[1])).config


def config_for(given: object, problem: Problem, views: Sequence[TensorView] = ()) -> KernelConfig:
    """The config that is meant, of the pass of a problem; of a rung that for its data type and
    heads. Tensors that no kernel of any config takes are refused first."""
    check_limits(problem, views)
    pass_ = pass_of(problem)
    if is_config(given):
        config = given
    else:
        d_head = smallest_holding(LADDER_D_HEADS, problem.d_head, problem.d_v)
        config = as_kernel_config(
            given,
            dtype=DType.from_string(str(problem.out_dtype or problem.dtype)),
            d_head=d_head or problem.d_head,
            n_heads=problem.heads,
            pass_=pass_,
        )
    check_pass(config, pass_)
    return config


def should_autotune_config(cfg: GivenConfig, arch: Arch = DEFAULT_ARCH) -> bool:
    """Whether a config is worth a measurement on `arch`, which means that it is valid there."""
    try:
        return as_kernel_config(cfg).broken_rule(arch) is None
    except KernelConfigError:
        return False


def get_kernel_progression_configs(
    arch: Arch = DEFAULT_ARCH, pass_: Pass = Pass.FORWARD
) -> list[KernelConfig]:
    """Return the rungs of a pass that run on `arch`, for all data types and head dimensions. Of a
    pass without rungs, return what heuristics choose for usual problems."""
    if not pass_.has_ladder:
        return chosen_configs(arch, pass_)
    return [
        rung.config
        for d_head in LADDER_D_HEADS
        for dtype in DType
        for rung in get_ladder(dtype, d_head, pass_=pass_)
        if rung.config.broken_rule(arch) is None
    ]


def get_autotuning_kernel_configs(
    arch: Arch = DEFAULT_ARCH, pass_: Pass = Pass.FORWARD
) -> list[KernelConfig]:
    """Return the configs of the search spaces of a pass that `should_autotune_config` accepts on
    `arch`."""
    spaces = map(_search_space, families_of(pass_))
    return [cfg for space in spaces for cfg in space if should_autotune_config(cfg, arch)]


@cache
def _search_space(family: AnyFamily) -> tuple[KernelConfig, ...]:
    return tuple(family.search_space())


def get_kernels_to_build(
    arch: Arch = DEFAULT_ARCH, pass_: Pass = Pass.FORWARD
) -> list[KernelConfig]:
    """Return the ladder, the search spaces, what heuristics choose for usual problems, and the
    examples of a pass together, sorted, without repeats."""
    examples = map(parse_kernel_config, EXAMPLES if pass_ is Pass.FORWARD else ())
    sets = (
        get_kernel_progression_configs(arch, pass_),
        get_autotuning_kernel_configs(arch, pass_),
        [config for config in examples if not config.broken_rule(arch)],
        chosen_configs(arch, pass_),
    )
    return sorted({config for one in sets for config in one}, key=sort_key)


def chosen_configs(arch: Arch, pass_: Pass) -> list[KernelConfig]:
    """Return what heuristics choose on `arch` for usual problems of a pass, without repeats."""
    found: dict[KernelConfig, None] = {}
    for problem in usual_problems(pass_):
        asked = (family.heuristic(problem, arch) for family in families_for(problem, pass_))
        found |= dict.fromkeys(islice(filter(is_config, asked), 1))
    return list(found)


def usual_problems(pass_: Pass) -> Iterator[Problem]:
    """Yield long and short self-attention of the usual head dimensions, with and without a causal
    mask, and the widest heads. The forward pass has e4m3 tensors and MLA decoding, too."""
    for dtype, length, causal in product(DType, LENGTHS, (False, True)):
        sizes = (TOKENS // length, length, length, HEADS, HEADS)
        element = dtype.to_torch_dtype()
        for d in (*USUAL_D_HEADS, WIDEST_D_HEAD):
            if pass_ is not Pass.FORWARD:
                of_pass = BackwardProblem if pass_ is Pass.BACKWARD else TangentProblem
                yield of_pass(*sizes, d, d, element, d**-0.5, causal)
                continue
            yield Problem(*sizes, d, d, element, d**-0.5, causal)
            if d in USUAL_D_HEADS:
                yield Problem(*sizes, d, d, E4M3, d**-0.5, causal, out_dtype=element)
        if pass_ is Pass.FORWARD:
            yield Problem(TOKENS // length, 1, length, 128, 1, 576, 512, element, 576**-0.5)


EXAMPLES = tuple(
    f"(FP16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_0_tiles{words}"
    for words in ("", "+opt_softmax", "+buffer", "+buffer+opt_softmax")
)
"""Small tiles with nothing of the later rungs: the shortest way to four kernels that differ."""
KERNEL_SETS = {
    "progression": get_kernel_progression_configs,
    "autotune": get_autotuning_kernel_configs,
    "all": get_kernels_to_build,
}


def chosen_set() -> str | None:
    """The set that $FLASH_ATTENTION_KERNELS names, if it is set."""
    return os.environ.get(SET_VARIABLE) or None


def get_kernel_configs(
    name: str | None = None, arch: Arch = DEFAULT_ARCH, pass_: Pass = Pass.FORWARD
) -> list[KernelConfig]:
    """Return the set of a pass called `name`: "progression" (the ladder), "autotune" or "all".

    The default is the set that $FLASH_ATTENTION_KERNELS names, else the ladder. Raises
    KernelConfigError for an unknown name.
    """
    chosen = name or chosen_set() or "progression"
    if chosen not in KERNEL_SETS:
        nearest = difflib.get_close_matches(chosen, KERNEL_SETS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise KernelConfigError(
            f"there is no kernel set {quoted(chosen)}; there are {', '.join(KERNEL_SETS)}{hint}",
            rule="kernel_set",
        )
    return KERNEL_SETS[chosen](arch, pass_)
