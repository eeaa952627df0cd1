# SPDX-License-Identifier: Apache-2.0
"""The sm_80 backward configs that the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.fields import choices
from flash_attention.families.neighbours import neighbours_of, samples
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.values import Violation

SEARCH_SPACE: dict[str, tuple[Any, ...]] = {
    "B_r": (32, 64, 128),
    "B_c": (64, 128),
    "n_warps": (4, 8),
    "column_warps": (1, 2),
    "stages": (2, 1),
    "mma_load_tiles": (1, 2),
    "dq_warp_rows": (32, 16),
    "register_operands": (True, False),
    "mma_double_buffer_loads": (True, False),
}
"""What the tuner tries at a data type and a head dimension: the product of these, less what breaks
a rule. It steps to other values of all fields from the best of them."""
FINISH: dict[str, Any] = {
    "swizzled": True,
    "eager_load_blocks": True,
    "folded_addresses": True,
    "stage_output": True,
}
"""What all of them have besides."""
D_HEADS = (64, 128)  # of the set of kernels to build; the tuner takes any


def combinations(dtype: DType, d_head: int) -> Iterator[FlashBackwardKernelConfig | Violation]:
    """Every combination of `SEARCH_SPACE`: a config, or the rule that there is none by."""
    for values in product(*SEARCH_SPACE.values()):
        chosen = dict(zip(SEARCH_SPACE, values, strict=True))
        try:
            yield FlashBackwardKernelConfig(dtype=dtype, d_head=d_head, **chosen, **FINISH)
        except KernelConfigError as error:
            yield Violation(error.rule, str(error))


def search_space() -> Iterator[FlashBackwardKernelConfig]:
    """The configs of the search space, for every data type and the usual head dimensions."""
    for dtype, d_head in product(DType, D_HEADS):
        for one in combinations(dtype, d_head):
            if not isinstance(one, Violation):
                yield one


def neighbours(config: FlashBackwardKernelConfig) -> list[FlashBackwardKernelConfig]:
    """The valid configs one step away: another value of one field."""
    return neighbours_of(config, every=True)


def sample_configs(seed: int, arch: Arch = DEFAULT_ARCH) -> Iterator[FlashBackwardKernelConfig]:
    """Valid configs of the family for ever, every field drawn from all its values."""
    return samples(FlashBackwardKernelConfig, choices(FlashBackwardKernelConfig), seed, arch)
