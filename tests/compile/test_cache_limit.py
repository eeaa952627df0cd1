# SPDX-License-Identifier: Apache-2.0
"""The kernels on disk keep to a size: what was not used for longest goes, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flash_attention.compile.cache import CUBIN, LOG, PTX, SOURCE, DiskCache, Entry

KEY = "0123456789abcdef" * 4
FILES = {SOURCE: b"source", CUBIN: bytes(range(256)) * 16, PTX: b"ptx", LOG: b"log"}


@pytest.fixture(scope="module")
def size(tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("one")
    DiskCache(folder).store(f"tiny-{1:016x}", KEY, FILES)
    return sum(path.stat().st_size for path in folder.rglob("*/*"))


def store(cache: Path, *numbers: int) -> None:
    for number in numbers:
        DiskCache(cache).store(f"tiny-{number:016x}", KEY, FILES)
        then = time.time() - 1000 + number
        os.utime(cache / f"tiny-{number:016x}", (then, then))


def names(cache: Path) -> list[int]:
    return sorted(int(path.name[5:], 16) for path in cache.glob("tiny-*"))


def test_what_was_not_used_for_longest_goes_first(
    cache: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_LIMIT", str(4 * size))
    store(cache, 1, 2, 3, 4)
    assert names(cache) == [1, 2, 3, 4]
    assert DiskCache(cache).load(f"tiny-{1:016x}", KEY) == FILES  # which is a use
    store(cache, 5)
    assert names(cache) == [1, 3, 4, 5]


def test_nothing_else_in_the_folder_is_touched(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_LIMIT", "1")
    (cache / "mine").mkdir(parents=True)
    (cache / "timings.jsonl").write_text("{}\n")
    store(cache, 1, 2)
    assert names(cache) == [2]
    others = {path.name for path in cache.iterdir() if not path.name.startswith("tiny-")}
    assert others == {"mine", "timings.jsonl"}


def test_entries_are_measured_now_and_then(
    cache: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_LIMIT", str(320 * size))
    measured = []
    entries = DiskCache.entries

    def count(disk: DiskCache) -> list[Entry]:
        measured.append(disk)
        return entries(disk)

    monkeypatch.setattr(DiskCache, "entries", count)
    store(cache, *range(25))
    assert len(measured) == 3
