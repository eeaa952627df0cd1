# SPDX-License-Identifier: Apache-2.0
"""Configs that follow from the values of fields: the neighbours of one, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from flash_attention.arch import Arch
from flash_attention.errors import KernelConfigError
from flash_attention.families.config import Config, changed
from flash_attention.families.fields import Values, choices

PROBLEM = ("dtype", "d_head")  # fields that follow from the problem


def neighbours_of(
    config: Config,
    *,
    fixed: Iterable[str] = (),
    values: Mapping[str, Iterable[Any]] | None = None,
    together: Iterable[Mapping[str, Any]] = (),
    every: bool = False,
) -> list[Config]:
    """Return the valid configs that differ in one field: in any other value of a switch or a
    choice, and in the next value of a number, or in `every` one.

    - `fixed`: fields that keep their value.
    - `values`: other values to try of a field.
    - `together`: values of several fields to try together.
    """
    instead = values or {}
    kept = {*PROBLEM, *fixed}
    steps: list[Mapping[str, Any]] = [
        {name: value}
        for name, allowed in choices(type(config)).items()
        if name not in kept
        for value in instead.get(name, allowed if every else _near(getattr(config, name), allowed))
    ]
    moved = (changed(config, **step) for step in (*steps, *together))
    return list(dict.fromkeys(near for near in moved if near is not None and near != config))


def _near(value: Any, allowed: Values) -> Values:
    if isinstance(value, bool | Enum):
        return allowed
    place = allowed.index(value)
    return allowed[max(place - 1, 0) : place + 2]


def samples(
    config_type: type[Config], values: Mapping[str, Values], seed: int, arch: Arch
) -> Iterator[Config]:
    """Yield configs for ever that are valid on `arch`, every field drawn from its values."""
    draw = random.Random(seed)
    while True:
        drawn = {name: draw.choice(allowed) for name, allowed in values.items()}
        with suppress(KernelConfigError):
            config = config_type(**drawn)
            if config.broken_rule(arch) is None:
                yield config
