# SPDX-License-Identifier: Apache-2.0
"""Where entries lie, what their key depends on, and what a damaged one is worth."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flash_attention.compile.cache import (
    CUBIN,
    LOG,
    PTX,
    SOURCE,
    DiskCache,
    cache_key,
    entry_name,
)

KEY = "0123456789abcdef" * 4
ENTRY_NAME = "tiny-0123456789abcdef"
FILES = {SOURCE: b"source", CUBIN: bytes(range(256)) * 16, PTX: b"ptx", LOG: b"log"}
AN_HOUR_AGO = 3700


def age(path: Path) -> None:
    then = time.time() - AN_HOUR_AGO
    os.utime(path, (then, then))


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / CUBIN).read_bytes())
    data[len(data) // 2] ^= 0x10
    (folder / CUBIN).write_bytes(data)


def truncate(folder: Path) -> None:
    os.truncate(folder / CUBIN, 100)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def make_a_file(folder: Path) -> None:
    empty(folder)
    folder.rmdir()
    folder.write_text("in the way")


def make_a_pipe(folder: Path) -> None:
    (folder / CUBIN).unlink()
    os.mkfifo(folder / CUBIN)


def make_a_link(folder: Path) -> None:
    (folder / CUBIN).rename(folder.parent / "elsewhere")
    (folder / CUBIN).symlink_to(folder.parent / "elsewhere")


DAMAGES: list[Callable[[Path], object]] = [
    flip_a_bit,
    truncate,
    empty,
    make_a_file,
    lambda folder: (folder / PTX).unlink(),
    lambda folder: (folder / SOURCE).write_bytes(b"another source"),
    lambda folder: (folder / "manifest.json").unlink(),
    lambda folder: (folder / "manifest.json").write_bytes(b'{"key": '),
    lambda folder: (folder / "manifest.json").write_bytes(b"\xff\x00"),
    lambda folder: (folder / "manifest.json").write_bytes(b"[" * 200_000),
    lambda folder: (folder / "manifest.json").write_bytes(b'{"key": ' + b"9" * 9999 + b"}"),
    lambda folder: os.truncate(folder / CUBIN, 2**30),
    make_a_pipe,
    make_a_link,
    lambda folder: (folder / CUBIN).chmod(0o664),
    lambda folder: (folder / CUBIN).chmod(0o646),
    lambda folder: folder.chmod(0o775),
]


class TestKey:
    def key(self, **changed: object) -> str:
        fields: dict[str, object] = {
            "source": "int x;",
            "headers": {"fa/a.cuh": "one", "fa/b.cuh": "two"},
            "options": ("-std=c++20", "-lineinfo"),
            "compiler": "13.0 abc",
            "arch": "sm_80",
        }
        return cache_key(**{**fields, **changed})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "changed",
        [
            {"source": "int y;"},
            {"headers": {"fa/a.cuh": "one", "fa/b.cuh": "2"}},
            {"headers": {"fa/a.cuh": "one", "fa/c.cuh": "two"}},
            {"headers": {"fa/a.cuh": "onefa/b.cuh", "": "two"}},
            {"headers": {"fa/a.cuh": "one"}},
            {"options": ("-std=c++20",)},
            {"options": ("-std=c++20-lineinfo",)},
            {
                "options": ("-std=c++20", "-lineinfo", "fa/a.cuh", "one"),
                "headers": {"fa/b.cuh": "two"},
            },
            {"compiler": "13.0 abd"},
            {"compiler": "13.0 ab", "arch": "csm_80"},
            {"arch": "sm_90"},
        ],
    )
    def test_depends_on_every_field_and_its_borders(self, changed: dict[str, object]) -> None:
        assert self.key(**changed) != self.key()

    def test_is_stable(self) -> None:
        assert self.key() == self.key()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("(FP16, 128): 64x32", "FP16_128_64x32-0123456789abcdef"),
        ("../../etc/passwd", "etc_passwd-0123456789abcdef"),
        ("...", "kernel-0123456789abcdef"),
        ("n" * 300, "n" * 120 + "-0123456789abcdef"),
    ],
)
def test_entry_name_is_readable_and_one_path_component(name: str, folder: str) -> None:
    assert entry_name(name, KEY) == folder


class TestEntries:
    def test_round_trip(self, cache: Path) -> None:
        assert DiskCache(cache).load(ENTRY_NAME, KEY) is None
        assert DiskCache(cache).store(ENTRY_NAME, KEY, FILES) == cache / ENTRY_NAME
        assert DiskCache(cache).load(ENTRY_NAME, KEY) == FILES
        assert [path.name for path in cache.iterdir()] == [ENTRY_NAME]

    def test_another_key_with_the_same_folder_is_a_miss(self, cache: Path) -> None:
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert DiskCache(cache).load(ENTRY_NAME, KEY[:-1] + "0") is None

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_is_a_miss_and_is_replaced(
        self, cache: Path, damage: Callable[[Path], object]
    ) -> None:
        disk = DiskCache(cache)
        folder = disk.store(ENTRY_NAME, KEY, FILES)
        assert folder is not None
        damage(folder)
        assert disk.load(ENTRY_NAME, KEY) is None
        disk.store(ENTRY_NAME, KEY, FILES)
        assert disk.load(ENTRY_NAME, KEY) == FILES

    def test_refused_source_can_be_read_but_not_loaded(self, cache: Path) -> None:
        folder = DiskCache(cache).store_failure(ENTRY_NAME, b"bad source", b"error")
        assert folder is not None
        assert (folder / SOURCE).read_bytes() == b"bad source"
        assert DiskCache(cache).load(ENTRY_NAME, KEY) is None

    def test_old_leftovers_are_removed_and_young_ones_kept(self, cache: Path) -> None:
        for name in (".tmp-old", ".tmp-young"):
            (cache / name).mkdir(parents=True)
            (cache / name / CUBIN).write_bytes(b"half a cub")
        (cache / ".gone.lock").touch()
        (cache / "kept-by-its-owner").mkdir()
        for name in (".tmp-old", ".gone.lock", "kept-by-its-owner"):
            age(cache / name)
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert {path.name for path in cache.iterdir()} == {
            ".tmp-young",
            "kept-by-its-owner",
            ENTRY_NAME,
        }


class TestPrivacy:
    def test_new_folder_is_the_users_alone_whatever_the_umask(self, cache: Path) -> None:
        umask = os.umask(0)
        try:
            DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        finally:
            os.umask(umask)
        for folder in (cache, cache / ENTRY_NAME):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in (cache / ENTRY_NAME).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_entries_of_a_shared_folder_can_be_read_by_others(self, cache: Path) -> None:
        cache.mkdir()
        cache.chmod(0o755)
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert stat.S_IMODE((cache / ENTRY_NAME).stat().st_mode) == 0o755

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_folder_of_another_user_is_not_used(
        self, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        os.chown(cache, 12345, 12345)
        self.assert_not_used(cache)
        assert "belongs to another user (uid 12345)" in caplog.text

    def test_folder_everyone_can_write_is_not_used(
        self, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        cache.chmod(0o1777)
        self.assert_not_used(cache)
        assert "can be written by every user" in caplog.text
        assert stat.S_IMODE(cache.stat().st_mode) == 0o1777

    def test_folder_the_group_can_write_is_not_used(
        self, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        cache.chmod(0o770)
        self.assert_not_used(cache)
        assert "can be written by its group; chmod g-w makes it yours" in caplog.text

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    @pytest.mark.parametrize("given", [".", CUBIN, "manifest.json"])
    def test_entry_of_another_user_is_not_loaded_and_is_replaced(
        self, cache: Path, given: str
    ) -> None:
        disk = DiskCache(cache)
        disk.store(ENTRY_NAME, KEY, FILES)
        os.chown(cache / ENTRY_NAME / given, 12345, 12345)
        assert disk.load(ENTRY_NAME, KEY) is None
        disk.store(ENTRY_NAME, KEY, FILES)
        assert disk.load(ENTRY_NAME, KEY) == FILES

    def test_link_to_a_folder_is_judged_by_what_it_leads_to(
        self, cache: Path, tmp_path: Path
    ) -> None:
        theirs = tmp_path / "theirs"
        DiskCache(theirs).store(ENTRY_NAME, KEY, FILES)
        cache.symlink_to(theirs)
        assert DiskCache(cache).load(ENTRY_NAME, KEY) == FILES
        theirs.chmod(0o777)
        assert DiskCache(cache).load(ENTRY_NAME, KEY) is None

    def test_folder_that_is_exchanged_while_it_is_used_is_used_as_it_was(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The exchange comes after the check of the folder, before anything in it is opened."""
        theirs = tmp_path / "theirs"
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        DiskCache(theirs).store(ENTRY_NAME, KEY, {**FILES, CUBIN: b"theirs"})
        check = os.fstat
        exchanged: list[Path] = []

        def exchange_after(descriptor: int) -> os.stat_result:
            status = check(descriptor)
            if not exchanged:
                exchanged.append(cache.rename(tmp_path / "moved"))
                cache.symlink_to(theirs)
            return status

        monkeypatch.setattr(os, "fstat", exchange_after)
        assert DiskCache(cache).load(ENTRY_NAME, KEY) == FILES

    def assert_not_used(self, cache: Path) -> None:
        disk = DiskCache(cache)
        assert disk.load(ENTRY_NAME, KEY) is None
        with disk.lock("other"):
            assert disk.store("other", KEY, FILES) is None
        assert [path.name for path in cache.iterdir()] == [ENTRY_NAME]


@pytest.fixture
def read_only(cache: Path) -> Iterator[Path]:
    """A cache with one entry that this process cannot write to, even when it is root."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "cache"
        folder.mkdir()
        folder.chmod(0o755)
        DiskCache(folder).store(ENTRY_NAME, KEY, FILES)
        folder.chmod(0o555)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if was_root:
                os.seteuid(0)
            folder.chmod(0o755)


class TestUnwritable:
    def test_read_only_folder_serves_what_it_holds(
        self, read_only: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert DiskCache(read_only).load(ENTRY_NAME, KEY) == FILES
        assert caplog.text == ""

    def test_read_only_folder_warns_once(
        self, read_only: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = DiskCache(read_only)
        for name in ("first", "second"):
            with disk.lock(name):
                assert disk.store(name, KEY, FILES) is None
        (record,) = caplog.records
        assert f"cannot write to {read_only} (Permission denied)" in record.message

    def test_folder_below_a_file_warns(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        disk = DiskCache(tmp_path / "file" / "cache")
        assert disk.load(ENTRY_NAME, KEY) is None
        with disk.lock(ENTRY_NAME):
            assert disk.store(ENTRY_NAME, KEY, FILES) is None
        assert disk.store_failure(ENTRY_NAME, b"", b"") is None
        assert "Not a directory" in caplog.text


class TestLock:
    def test_is_removed_when_freed(self, cache: Path) -> None:
        with DiskCache(cache).lock(ENTRY_NAME):
            assert [path.name for path in cache.iterdir()] == [f".{ENTRY_NAME}.lock"]
        assert list(cache.iterdir()) == []

    def test_file_system_without_locks_is_no_obstacle(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "lockf", refuse)
        with DiskCache(cache).lock(ENTRY_NAME):
            DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert DiskCache(cache).load(ENTRY_NAME, KEY) == FILES

    def test_errors_of_the_holder_pass_through(self, cache: Path) -> None:
        with pytest.raises(KeyError), DiskCache(cache).lock(ENTRY_NAME):
            raise KeyError
        assert list(cache.iterdir()) == []

    def test_a_lock_that_someone_else_holds_is_left_alone(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(descriptor: int, operation: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(fcntl, "lockf", interrupt)
        with pytest.raises(KeyboardInterrupt), DiskCache(cache).lock(ENTRY_NAME):
            pass
        assert [path.name for path in cache.iterdir()] == [f".{ENTRY_NAME}.lock"]


class TestVerification:
    def test_whole_entries_have_no_fault(self, cache: Path) -> None:
        DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert DiskCache(cache).fault(ENTRY_NAME) is None

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_what_is_not_loaded_has_a_fault(
        self, cache: Path, damage: Callable[[Path], object]
    ) -> None:
        folder = DiskCache(cache).store(ENTRY_NAME, KEY, FILES)
        assert folder is not None
        damage(folder)
        assert DiskCache(cache).fault(ENTRY_NAME)

    def test_an_entry_under_another_name_has_a_fault(self, cache: Path) -> None:
        DiskCache(cache).store("tiny-fedcba9876543210", KEY, FILES)
        fault = DiskCache(cache).fault("tiny-fedcba9876543210")
        assert fault == "manifest.json is not that of this kernel"
