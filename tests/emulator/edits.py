# SPDX-License-Identifier: Apache-2.0
"""Edits of the headers, a copy of them with the edits made, and kernels compiled from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flash_attention.compile import INCLUDE_DIR, CompiledKernel, compile_to_ptx
from flash_attention.compile.unit import Unit
from flash_attention.launch import emulation


@dataclass(frozen=True)
class Edit:
    """In `header`, occurrence number `nth` of `old` becomes `new`."""

    header: str
    old: str
    new: str = ""
    nth: int = 0

    def apply(self, text: str) -> str:
        pieces = text.split(self.old)
        if len(pieces) < self.nth + 2:
            raise ValueError(f"{self.header} has no occurrence {self.nth} of {self.old!r}")
        head, tail = self.old.join(pieces[: self.nth + 1]), self.old.join(pieces[self.nth + 1 :])
        return head + self.new + tail


def edited_headers(edits: Iterable[Edit], folder: Path) -> Path:
    """An include directory in `folder`: the package's own but for the edits."""
    include = folder / "include"
    shutil.copytree(INCLUDE_DIR, include)
    for edit in edits:
        header = include / "fa" / edit.header
        header.write_text(edit.apply(header.read_text()))
    return include


def compiler(edits: Iterable[Edit], folder: Path) -> Callable[[Unit], CompiledKernel]:
    """What compiles units from headers of which `folder` holds an edited copy."""
    include = edited_headers(edits, folder)

    def compile_edited(unit: Unit) -> CompiledKernel:
        return compile_to_ptx(unit.source, arch=unit.target, name="mutated", include_dir=include)

    return compile_edited


def plant(edits: Iterable[Edit], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the emulator's calls compile from headers of which `folder` holds an edited copy."""
    monkeypatch.setattr(emulation, "compiled_unit", compiler(edits, folder))
