# SPDX-License-Identifier: Apache-2.0
"""Configs that cannot be made, for tests of what follows from single fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from flash_attention.kernel_configs import KernelConfig

Config = TypeVar("Config", bound=KernelConfig)


def unchecked(config: Config, **changes: Any) -> Config:
    """The config with some fields changed, whatever rule that breaks."""
    made = object.__new__(type(config))
    for field in fields(config):
        value = changes.get(field.name, getattr(config, field.name))
        object.__setattr__(made, field.name, value)
    return made
