# SPDX-License-Identifier: Apache-2.0
"""What holds for the configs of every family: they are read back, broken rules are named, and every
field is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.compile import compile_kernel
from flash_attention.compile.elf import text_section
from flash_attention.errors import KernelConfigError
from flash_attention.families.parse import parse_kernel_config, parse_kernel_name
from flash_attention.families.registry import unit_of


def check_read_back(config: Any, variant: str) -> None:
    """A config is read back from its short form and from its kernel's name, with `variant`."""
    assert parse_kernel_config(config.short_form()) == config
    name = f"flash_forward_kernel_{config.kernel_name()}_{variant}"
    assert parse_kernel_name(name) == config


def check_broken_rule(config: Any, changes: dict[str, Any], rule: str, message: str) -> None:
    """A config with `changes` breaks `rule`, and the error says so."""
    with pytest.raises(KernelConfigError, match=message) as refused:
        replace(config, **changes)
    assert refused.value.rule == rule


def check_needs_sm90(config: Any, what: str) -> None:
    """No other architecture has the kernel of a config, which the error calls `what`."""
    violation = config.broken_rule(ARCHES["sm_80"])
    assert violation is not None
    assert violation.message == f"{what} needs sm_90 (H100, H200), this is sm_80"


def check_compiled(config: Any, changes: dict[str, Any]) -> None:
    """A config with `changes` has other machine code."""
    assert _code_of(replace(config, **changes)) != _code_of(config)


def _code_of(config: Any) -> bytes:
    unit = unit_of(config)
    return text_section(compile_kernel(unit.source, arch=unit.target, name=unit.name).cubin)
