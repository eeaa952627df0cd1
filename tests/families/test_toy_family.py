# SPDX-License-Identifier: Apache-2.0
"""The family that CONTRIBUTING.md adds: it is as short as it says, and everything takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError, emulate, explain, forward, forward_kernels
from flash_attention.families.config import KernelConfig
from flash_attention.families.registry import FAMILIES, family_of
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.reference.judge import check_output, generate_qkv

DOCUMENT = Path(__file__).parents[2] / "CONTRIBUTING.md"
(PROGRAM,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)


@pytest.fixture
def config() -> Iterator[KernelConfig]:
    """A config of the family, which is registered for one test."""
    before = list(FAMILIES)
    namespace: dict[str, Any] = {"__name__": "one_warp"}
    exec(compile(PROGRAM, str(DOCUMENT), "exec", dont_inherit=True), namespace)
    yield namespace["OneWarpConfig"]()
    FAMILIES[:] = before


def test_it_is_under_sixty_lines() -> None:
    assert len(PROGRAM.splitlines()) < 60


def test_its_kernel_is_emulated_right_and_clean(config: KernelConfig) -> None:
    q, k, v = generate_qkv(2, 9, 2, 64, torch.bfloat16, seq_len_k=33)
    check = check_output(forward(config, q, k, v), q, k, v)
    assert check.ok, check
    assert emulate(config, q, k, v, schedule="depth-first").findings == ()


def test_its_config_is_known_by_its_short_form(config: KernelConfig) -> None:
    assert config.short_form() == "one_warp(BF16, 64): plain"
    assert parse_kernel_config(config.short_form()) == config
    assert config in forward_kernels
    assert family_of(config) is FAMILIES[-1]


def test_it_is_explained_and_refuses_what_it_has_not(config: KernelConfig) -> None:
    q, k, v = generate_qkv(1, 8, 3, 64, torch.bfloat16)
    told = explain(q, k, v, config=config)
    assert [(launch.name, launch.grid) for launch in told.launches] == [("one_warp", (8, 3, 1))]
    assert told.tiles == 24
    with pytest.raises(UnsupportedError, match="full attention only"):
        forward(config, q, k, v, causal=True)
    with pytest.raises(UnsupportedError, match="OneWarpConfig kernels visit all keys"):
        forward(config, q, k, v, split_keys=64)


def test_what_is_chosen_stays_what_it_was(config: KernelConfig) -> None:
    q, k, v = generate_qkv(1, 256, 2, 64, torch.bfloat16)
    assert explain(q, k, v, arch="sm_90").config.prefix == "hopper"
