# SPDX-License-Identifier: Apache-2.0
"""A probe that fails becomes a row, whatever it raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention_workbench.commands.probes import PROBES, Probe, examine


def broken() -> str:
    raise OSError("the disk is gone")


@pytest.mark.parametrize(("essential", "status"), [(True, "failed"), (False, "missing")])
def test_a_raising_probe_keeps_its_reason_and_its_advice(essential: bool, status: str) -> None:
    finding = examine(Probe("disk", broken, "buy a disk", essential))
    assert finding.status == status
    assert (finding.detail, finding.advice) == ("the disk is gone", "buy a disk")


def test_an_exception_without_words_is_named() -> None:
    def silent() -> str:
        raise KeyError

    assert examine(Probe("disk", silent, "")).detail == "KeyError"


def test_a_cache_folder_that_cannot_be_made_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(blocker / "cache"))
    finding = examine(next(probe for probe in PROBES if probe.name == "cache"))
    assert finding.status == "missing"
    assert "FLASH_ATTENTION_CACHE_DIR" in finding.advice
