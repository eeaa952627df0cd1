# SPDX-License-Identifier: Apache-2.0
"""`cache` lists, measures, clears and verifies the folder of compiled kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flash_attention.compile.cache import CUBIN, LOG, PTX, SOURCE, DiskCache
from tests.workbench.commands.invoke import invoke, refuse

KEYS = ("0" * 64, "1" * 64)
FILES = {SOURCE: b"source", CUBIN: bytes(1000), PTX: b"ptx", LOG: b"log"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    for key in KEYS:
        DiskCache(tmp_path / "cache").store(f"tiny-{key[:16]}", key, FILES)
    (tmp_path / "cache" / "timings.jsonl").write_text("{}\n")
    return tmp_path / "cache"


def test_kernels_are_listed(folder: Path) -> None:
    listed = {
        entry["name"]: entry["size"] for entry in json.loads(invoke("cache", "list", "--json"))
    }
    assert listed == {
        path.name: sum(file.stat().st_size for file in path.iterdir())
        for path in folder.glob("tiny-*")
    }
    assert all(name in invoke("cache", "list") for name in listed)


def test_the_size_is_that_of_the_files(folder: Path) -> None:
    taken = sum(path.stat().st_size for path in folder.glob("tiny-*/*"))
    facts = json.loads(invoke("cache", "size", "--json"))
    assert facts == {"folder": str(folder), "kernels": 2, "bytes": taken, "limit": 2 * 2**30}
    text = invoke("cache", "size")
    assert f"2 kernels in {folder} take {taken / 1024:.1f} KiB, of 2.0 GiB" in text


def test_clearing_leaves_what_is_no_kernel(folder: Path) -> None:
    assert invoke("cache", "clear") == f"removed 2 kernels from {folder}\n"
    assert [path.name for path in folder.iterdir()] == ["timings.jsonl"]
    assert invoke("cache", "clear") == f"removed 0 kernels from {folder}\n"


def test_a_damaged_kernel_is_named(folder: Path) -> None:
    assert invoke("cache", "verify") == f"2 of 2 kernels in {folder} are whole\n"
    (folder / f"tiny-{KEYS[0][:16]}" / CUBIN).write_bytes(b"damaged")
    text = invoke("cache", "verify", exit_code=1)
    assert text.splitlines()[0] == (
        f"tiny-{KEYS[0][:16]}: its files are not those that manifest.json describes"
    )
    assert f"1 of 2 kernels in {folder} are whole" in text


def test_a_folder_that_does_not_exist_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path / "none"))
    assert invoke("cache", "verify") == f"0 of 0 kernels in {tmp_path / 'none'} are whole\n"
    assert not (tmp_path / "none").exists()


def test_a_folder_of_others_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    assert "can be written by every user" in refuse("cache", "list")
