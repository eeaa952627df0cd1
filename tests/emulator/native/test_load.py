# SPDX-License-Identifier: Apache-2.0
"""Native code is loaded where a compiler and a folder of the user's own are, and nowhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ptx_emulator.native import build, load, load_native


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def load_anew() -> load.Native | None:
    return load_native.__wrapped__()


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    if load_anew() is None:
        pytest.skip("needs a C compiler")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    assert sorted(path.suffix for path in files) == [".lock", ".so"]
    assert load_anew() is not None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == files


def test_without_a_compiler_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert load_anew() is None


def test_a_compiler_that_fails_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OPTIONS", ("-no-such-option",))
    assert load_anew() is None


def test_what_others_can_change_is_not_loaded(tmp_path: Path) -> None:
    if load_anew() is None:
        pytest.skip("needs a C compiler")
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    assert load_anew() is None
