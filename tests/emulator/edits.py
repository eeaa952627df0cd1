# SPDX-License-Identifier: Apache-2.0
"""Lets the emulator's calls compile from headers with edits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from flash_attention.launch import emulation
from flash_attention_workbench.plants import Edit, compiler, edited_headers

__all__ = ["Edit", "compiler", "edited_headers", "plant"]


def plant(edits: Iterable[Edit], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the emulator's calls compile from headers of which `folder` holds an edited copy."""
    monkeypatch.setattr(emulation, "compiled_unit", compiler(edited_headers(edits, folder)))
