# SPDX-License-Identifier: Apache-2.0
"""A cache folder of its own for every test, and processes that hold the compiler alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flash_attention.compile import notices
from tests.bare_package import import_path_with
from tests.compile.sources import SCALE_HEADER

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(folder))
    monkeypatch.setattr(notices, "_told_memory_only", threading.Lock())
    return folder


@pytest.fixture
def include_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    (folder / "fa").mkdir(parents=True)
    (folder / "fa" / "scale.cuh").write_text(SCALE_HEADER)
    return folder


@pytest.fixture
def bare_package(tmp_path: Path) -> Path:
    """An import path with the compiler and the errors, and nothing else of this package."""
    return import_path_with(tmp_path, "compile", "errors.py")


@pytest.fixture
def spawn(bare_package: Path, cache: Path) -> Spawn:
    """Start a Python process that has imported `compile_kernel` and runs `code`."""

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", f"{_PRELUDE}{code}", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(bare_package),
                "FLASH_ATTENTION_CACHE_DIR": str(cache),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


_PRELUDE = """\
import sys
from flash_attention.compile import compile_kernel
"""
