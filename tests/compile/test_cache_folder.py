# SPDX-License-Identifier: Apache-2.0
"""Where the cache is, and how large it may become, under every environment."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from flash_attention.compile.cache_folder import cache_dir, cache_limit, shown, size_text
from flash_attention.errors import UnsupportedError


class TestCacheDir:
    @pytest.fixture(autouse=True)
    def home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def test_variable_overrides(self, cache: Path) -> None:
        assert cache_dir() == cache

    def test_variable_may_be_relative_or_start_at_home(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "here")
        assert cache_dir() == tmp_path / "here"
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "~/there")
        assert cache_dir() == Path("/home/someone/there")
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "~root/there")
        assert cache_dir() == Path(pwd.getpwnam("root").pw_dir) / "there"

    def test_home_of_nobody_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "~nosuchuser/kernels")
        with pytest.raises(UnsupportedError, match="'~nosuchuser/kernels' starts at the home of a"):
            cache_dir()
        assert list(tmp_path.iterdir()) == []

    def test_working_folder_that_is_gone_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "here")
        with pytest.raises(UnsupportedError, match="relative to a working folder that was removed"):
            cache_dir()

    @pytest.mark.parametrize(
        ("xdg", "expected"),
        [
            ("/var/kernels", "/var/kernels/flash_attention"),
            ("", "/home/someone/.cache/flash_attention"),
            ("not/absolute", "/home/someone/.cache/flash_attention"),
        ],
    )
    def test_default_follows_xdg(
        self, monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str
    ) -> None:
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "")
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_dir() == Path(expected)

    @pytest.mark.parametrize("home", ["", "not/absolute"])
    def test_empty_home_is_none(self, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
        monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", "")
        monkeypatch.setenv("HOME", home)
        known = pwd.getpwuid(os.getuid()).pw_dir
        assert cache_dir() == Path(known) / ".cache" / "flash_attention"

        def unknown(user: int) -> None:
            raise KeyError(user)

        monkeypatch.setattr(pwd, "getpwuid", unknown)
        assert cache_dir() == Path(tempfile.gettempdir()) / f"flash_attention-{os.geteuid()}"


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("", 2 * 2**30),
        ("0", 0),
        ("123456", 123456),
        ("100 B", 100),
        ("1.5 GiB", 3 * 2**29),
        ("64MiB", 2**26),
    ],
)
def test_limit_is_a_size(monkeypatch: pytest.MonkeyPatch, given: str, size: int) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_LIMIT", given)
    assert cache_limit() == size


@pytest.mark.parametrize("given", ["lots", "-1", "1e9", "2 GB", "9" * 5000])
def test_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_LIMIT", given)
    with pytest.raises(UnsupportedError, match="is not a size; set it to a number of bytes"):
        cache_limit()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 * 2**29, "2.5 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_every_path_can_be_shown() -> None:
    assert shown(Path("/\udcff/é")) == "/\\xff/é"
