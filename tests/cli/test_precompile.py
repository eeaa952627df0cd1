# SPDX-License-Identifier: Apache-2.0
"""What keeps a kernel from being built is an outcome, never an exception."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.cli.precompile import precompile
from flash_attention.ladder import get_ladder


def test_a_refused_source_is_an_outcome_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    config = get_ladder()[0].config
    (outcome,) = precompile([(config, dataclasses.replace(DEFAULT_ARCH, name="sm_20"))], 1)
    assert outcome.fate == "failed"
    assert "sm_20" in outcome.reason


def test_a_config_that_breaks_a_rule_is_not_compiled() -> None:
    eager = dataclasses.replace(get_ladder()[0].config, async_copy=False, eager_load_blocks=True)
    (outcome,) = precompile([(eager, DEFAULT_ARCH)], 1)
    assert (outcome.fate, outcome.reason) == ("not valid", "eager_needs_async")
