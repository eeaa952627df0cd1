# SPDX-License-Identifier: Apache-2.0
"""Cores are counted as this process may use them: by affinity, and by a container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flash_attention_workbench.cores import usable_cores


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))


@pytest.mark.parametrize(
    ("said", "cores"),
    [("max 100000", 64), ("1600000 100000", 16), ("50000 100000", 1), ("9900000 100000", 64)],
)
def test_the_second_version_of_control_groups(tmp_path: Path, said: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(said + "\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 64), ("400000", 4)])
def test_the_first_version_of_control_groups(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_without_control_groups_those_it_may_run_on(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 64
