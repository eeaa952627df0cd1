# SPDX-License-Identifier: Apache-2.0
"""The sm_80 configs that the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.config import changed
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig
from flash_attention.families.sm80.forward.rules import CHOICES
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
_SWITCHES = [field.name for field in fields(FlashForwardKernelConfig) if field.type == "bool"]
_LOADS = [name for name in CHOICES if name.endswith("_mma_load_K_tiles")]


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
    steps: list[dict[str, Any]] = [
        dict(zip(TILE, tile, strict=True)) for tile in product(*(CHOICES[name] for name in TILE))
    ]
    steps += [{name: tiles} for name in _LOADS for tiles in CHOICES[name]]
    steps += [{name: not getattr(config, name)} for name in _SWITCHES]
    moved = (changed(config, **step) for step in steps)
    return list(dict.fromkeys(near for near in moved if near is not None and near != config))


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
    draw = random.Random(seed)
    choices: dict[str, Sequence[Any]] = {
        **{field.name: (False, True) for field in fields(FlashForwardKernelConfig)},
        **CHOICES,
        "dtype": tuple(DType),
        "static_row_stride": row_strides,
    }
    while True:
        values = {name: draw.choice(v) for name, v in choices.items()}
        with suppress(KernelConfigError):
            cfg = FlashForwardKernelConfig(**values)
            if cfg.broken_rule(arch) is None:
                yield cfg
