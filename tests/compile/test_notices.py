# SPDX-License-Identifier: Apache-2.0
"""Compiles are never silent, and the warning about the cache comes once."""

from __future__ import annotations

import logging

import pytest

from flash_attention.compile.notices import announce, logger, warn_memory_only


def test_configured_logging_gets_the_message_at_info(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="flash_attention"):
        announce("compiled it")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "compiled it")
    ]
    assert capsys.readouterr().err == ""


def test_unconfigured_logging_prints_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", False)
    announce("compiled it")
    assert capsys.readouterr().err == "flash_attention: compiled it\n"


def test_a_variable_silences_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setenv("FLASH_ATTENTION_QUIET", "1")
    announce("compiled it")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FLASH_ATTENTION_QUIET", "0")
    announce("compiled it")
    assert capsys.readouterr().err == "flash_attention: compiled it\n"


def test_a_level_on_the_logger_is_respected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    announce("compiled it")
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    assert capsys.readouterr().err == ""


def test_memory_only_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_memory_only("the disk is full")
    warn_memory_only("the disk is full")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("the disk is full; ")
    assert "FLASH_ATTENTION_CACHE_DIR" in record.message
