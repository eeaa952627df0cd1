# SPDX-License-Identifier: Apache-2.0
"""Skips what needs a GPU where there is none, and keeps compiled kernels out of the home folder."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None)  # a busy machine is no failure
LONG = ()


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("house")
    torch.set_num_threads(1)  # tests are small, and run in parallel already
    kernels = config.rootpath / ".pytest_cache" / "kernels"
    os.environ.setdefault("FLASH_ATTENTION_CACHE_DIR", str(kernels))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for asked_for in ("mutations", "exhaustive"):
        if asked_for not in config.option.markexpr:
            items[:] = [item for item in items if not item.get_closest_marker(asked_for)]
    # What looks at machine code goes first: the emulator then finds the PTX of the same kernels.
    # Then long files, so that no worker has one of them left when the others are done.
    items.sort(key=lambda item: ("kernels" not in item.path.parts, item.path.name not in LONG))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded by now stays, and is not looked through again and again


@pytest.fixture
def schedule(request: pytest.FixtureRequest) -> str:
    """The order of warps in which a test emulates a kernel: always the same one, while the tests
    of a file take turns at all of them."""
    from ptx_emulator import SCHEDULES

    return SCHEDULES[zlib.crc32(request.node.nodeid.encode()) % len(SCHEDULES)]


@pytest.fixture
def no_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a kernel in the cache folder."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(folder))
    yield
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.fixture
def two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a second kernel combine all partial results of split-KV, also few."""
    monkeypatch.setattr("flash_attention.families.sm90.forward.splits.MOST_ROWS_AT_ONCE", 0)
