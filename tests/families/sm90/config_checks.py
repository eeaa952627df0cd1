# SPDX-License-Identifier: Apache-2.0
"""What holds for the configs of every family: they are read back, broken rules are named, and every
field is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.compile import compile_to_ptx
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
    """A config with `changes` has other instructions."""
    assert _instructions_of(replace(config, **changes)) != _instructions_of(config)


def _instructions_of(config: Any) -> list[str]:
    """The PTX of a kernel without its name and the lines that it comes from."""
    unit = unit_of(config)
    kernel = compile_to_ptx(unit.source, arch=unit.target, name=unit.name)
    body = kernel.ptx.partition(f".entry {kernel.entry}")[2].partition("\n\t.file")[0]
    lines = body.replace(kernel.entry, "").splitlines()
    return [line for line in lines if not line.lstrip().startswith((".loc", "//"))]
