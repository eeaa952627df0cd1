# SPDX-License-Identifier: Apache-2.0
"""The sm_80 configs that the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.fields import choices
from flash_attention.families.neighbours import neighbours_of, samples
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.values import Violation

SEARCH_SPACE: dict[str, tuple[Any, ...]] = {
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "async_copy": (True, False),
    "eager_load_blocks": (True, False),
    "swizzled": (True, False),
    "Q_mma_load_K_tiles": (2, 0),
    "K_mma_load_K_tiles": (2, 0),
    "V_mma_load_K_tiles": (2, 0),
    "mma_double_buffer_loads": (True, False),
    "optimized_softmax": (True, False),
    "reverse_kv": (False, True),
}
"""What the tuner tries at a data type and a head dimension: the product of these, less what breaks
a rule. It steps to other values of all fields from the best of them."""
FINISH: dict[str, Any] = {
    "folded_addresses": True,
    "serpentine_mma": True,
    "stage_output": True,
    "reciprocal_normalise": True,
    "column_panels": True,
}
"""What all of them have besides."""
D_HEADS = (64, 128)  # of the set of kernels to build; the tuner takes any
TILE = ("B_r", "B_c", "n_warps")


def combinations(dtype: DType, d_head: int) -> Iterator[FlashForwardKernelConfig | Violation]:
    """Every combination of `SEARCH_SPACE`: a config, or the rule that there is none by."""
    for values in product(*SEARCH_SPACE.values()):
        chosen = dict(zip(SEARCH_SPACE, values, strict=True))
        try:
            yield FlashForwardKernelConfig(dtype=dtype, d_head=d_head, **chosen, **FINISH)
        except KernelConfigError as error:
            yield Violation(error.rule, str(error))


def search_space() -> Iterator[FlashForwardKernelConfig]:
    """The configs of the search space, for every data type and the usual head dimensions."""
    for dtype, d_head in product(DType, D_HEADS):
        for one in combinations(dtype, d_head):
            if not isinstance(one, Violation):
                yield one


def neighbours(config: FlashForwardKernelConfig) -> list[FlashForwardKernelConfig]:
    """The valid configs one step away: another tile, another way to read an operand, a switch."""
    values = choices(FlashForwardKernelConfig)
    tiles = [dict(zip(TILE, tile, strict=True)) for tile in product(*(values[n] for n in TILE))]
    return neighbours_of(config, fixed=TILE, together=tiles, every=True)


def likeliest_first(
    first: FlashForwardKernelConfig, configs: Iterable[FlashForwardKernelConfig]
) -> list[FlashForwardKernelConfig]:
    """In the order of the choices in which they differ from `first`; a tile is one choice."""
    others = [*(name for name in SEARCH_SPACE if name not in TILE), *FINISH]

    def choices_apart(config: FlashForwardKernelConfig) -> int:
        differ = [name for name in others if getattr(config, name) != getattr(first, name)]
        return len(differ) + (config.tile() != first.tile())

    return sorted(configs, key=choices_apart)


def sample_configs(
    seed: int, arch: Arch = DEFAULT_ARCH, row_strides: tuple[int, ...] = (0,)
) -> Iterator[FlashForwardKernelConfig]:
    """Valid configs of the sm_80 family for ever, every field drawn from all its values."""
    values = choices(FlashForwardKernelConfig) | {"static_row_stride": row_strides}
    return samples(FlashForwardKernelConfig, values, seed, arch)
