# SPDX-License-Identifier: Apache-2.0
"""The sm_80 backward configs that the tuner tries, and samples of all the valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import product
from typing import Any

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError
from flash_attention.families.config import changed
from flash_attention.families.sm80.backward.config import FlashBackwardKernelConfig
from flash_attention.families.sm80.backward.rules import CHOICES
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
_FREE = ("dtype", "d_head")


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
    steps = [
        {name: value}
        for name, values in _values().items()
        if name not in _FREE
        for value in values
        if value != getattr(config, name)
    ]
    moved = (changed(config, **step) for step in steps)
    return [near for near in moved if near is not None]


def sample_configs(seed: int, arch: Arch = DEFAULT_ARCH) -> Iterator[FlashBackwardKernelConfig]:
    """Valid configs of the family for ever, every field drawn from all its values."""
    draw = random.Random(seed)
    while True:
        values = {name: draw.choice(v) for name, v in _values().items()}
        with suppress(KernelConfigError):
            cfg = FlashBackwardKernelConfig(**values)
            if cfg.broken_rule(arch) is None:
                yield cfg


def _values() -> dict[str, Sequence[Any]]:
    """All values of every field."""
    switches = {field.name: (False, True) for field in fields(FlashBackwardKernelConfig)}
    return {**switches, **CHOICES, "dtype": tuple(DType)}
