# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one folder a kernel, complete or absent, checked by digest.

Machine code is loaded from here, so the folder, every kernel's folder and every file must belong to
this user or to root, and no one else may have the right to write there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flash_attention.compile.cache_folder import cache_limit, shown
from flash_attention.compile.folder import (
    UntrustedError,
    opened_folder,
    read_file,
    remove,
    rename,
    status_of,
    write_file,
)
from flash_attention.compile.notices import warn_memory_only

SOURCE, CUBIN, PTX, LOG = "kernel.cu", "kernel.cubin", "kernel.ptx", "kernel.log"

_MANIFEST = "manifest.json"
_FORMAT = "flash_attention compile cache 1"
_KEY_IN_MANIFEST = re.compile(rb'"key": "([0-9a-f]{64})"')
_ENTRY = re.compile(r"[\w.=+-]+-[0-9a-f]{16}", re.ASCII)
_TEMPORARY_PREFIX = ".tmp-"
_LEFTOVER_AFTER_S = 3600.0  # no compile takes an hour: what is older was left by a dead process
_LOCK_PATIENCE_S = 120.0  # a lock held longer belongs to a stopped process
_LOCK_POLL_S = 0.01
_SHARE_BETWEEN_SWEEPS = 32  # of the limit, that one process stores before it measures again


def cache_key(
    source: str,
    headers: Mapping[str, str],
    *,
    options: Sequence[str],
    compiler: str,
    arch: str,
) -> str:
    """SHA-256 over everything the machine code depends on."""
    header_fields = [field for header in headers.items() for field in header]
    digest = hashlib.sha256()
    for group in ([_FORMAT, compiler, arch, source], options, header_fields):
        digest.update(len(group).to_bytes(8, "little"))
        for field in group:
            encoded = field.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


def entry_name(name: str, key: str) -> str:
    """The folder of a kernel: readable, and its own for every key."""
    readable = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", name).strip("._")[:120] or "kernel"
    return f"{readable}-{key[:16]}"


@dataclass(frozen=True)
class Entry:
    """A kernel on disk: its folder, what its files take, and when it was last asked for."""

    name: str
    size: int
    last_used: float  # seconds since 1970


class DiskCache:
    """The entries below one folder; what cannot be stored is reported once, never raised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.limit = cache_limit()

    def load(self, entry: str, key: str) -> dict[str, bytes] | None:
        """The files of an entry, None unless all are there, whole, and not from someone else."""
        try:
            with self._opened() as root, opened_folder(entry, root) as folder:
                files = {name: read_file(name, folder) for name in (SOURCE, CUBIN, PTX, LOG)}
                if read_file(_MANIFEST, folder) != _manifest(key, files):
                    return None
                with suppress(OSError):  # a folder that is only read keeps its times
                    os.utime(folder)
                return files
        except OSError:
            return None

    def store(self, entry: str, key: str, files: Mapping[str, bytes]) -> Path | None:
        """Keep a kernel; its folder, or None when it could not be written."""
        try:
            return self._publish(entry, {**files, _MANIFEST: _manifest(key, files)})
        except OSError as error:
            if self.load(entry, key) is not None:  # another process was faster
                return self.root / entry
            warn_memory_only(f"cannot write to {shown(self.root)} ({error.strerror or error})")
            return None

    def load_beside(self, entry: str, name: str) -> bytes | None:
        """One more file of an entry, if it is there and not from someone else."""
        try:
            with self._opened() as root, opened_folder(entry, root) as folder:
                return read_file(name, folder)
        except OSError:
            return None

    def store_beside(self, entry: str, name: str, data: bytes) -> None:
        """Keep one more file with an entry, in place of one of that name, if there is room."""
        temporary = f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with suppress(OSError), self._opened() as root:
            with opened_folder(entry, root) as folder:
                try:
                    write_file(temporary, data, folder)
                    rename(temporary, name, folder)
                finally:
                    remove(temporary, folder)
            self._keep_to_the_limit(root, len(data))

    def store_failure(self, entry: str, source: bytes, log: bytes) -> Path | None:
        """Keep a source NVRTC refused, for people to read; `load` takes it for a miss."""
        try:
            return self._publish(entry, {SOURCE: source, LOG: log})
        except OSError:
            return None

    @contextmanager
    def lock(self, entry: str) -> Iterator[None]:
        """Hold an entry against other processes, where the file system knows locks."""
        name = f".{entry}.lock"
        with ExitStack() as held:
            with suppress(OSError):
                root = held.enter_context(self._opened(make=True))
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o600, dir_fd=root)
                held.callback(os.close, descriptor)
                if _wait_for_lock(descriptor):
                    # Whoever waits on the removed file looks for the entry again when it gets it.
                    held.callback(remove, name, root)
            yield

    def entries(self) -> list[Entry]:
        """Every kernel in the folder, the one used last first; UntrustedError as `load` has it."""
        try:
            with self._opened() as root:
                found = [_measured(name, root) for name in os.listdir(root) if _is_entry(name)]
        except FileNotFoundError:
            return []
        return sorted(
            (entry for entry in found if entry), key=lambda entry: entry.last_used, reverse=True
        )

    def fault(self, entry: str) -> str | None:
        """Why an entry cannot be loaded; None when it can."""
        try:
            with self._opened() as root, opened_folder(entry, root) as folder:
                manifest = read_file(_MANIFEST, folder)
                files = {name: read_file(name, folder) for name in (SOURCE, CUBIN, PTX, LOG)}
        except FileNotFoundError as error:
            return f"{error.filename} is missing"
        except OSError as error:
            return error.strerror or str(error)
        key = _KEY_IN_MANIFEST.search(manifest)
        if key is None or not entry.endswith(f"-{key.group(1)[:16].decode()}"):
            return f"{_MANIFEST} is not that of this kernel"
        if manifest != _manifest(key.group(1).decode(), files):
            return f"its files are not those that {_MANIFEST} describes"
        return None

    def discard(self, entries: Sequence[Entry]) -> None:
        """Remove entries; who has loaded one goes on with it."""
        with self._opened() as root:
            for entry in entries:
                remove(entry.name, root)

    def _publish(self, entry: str, files: Mapping[str, bytes]) -> Path:
        temporary = f"{_TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        replaced = f"{temporary}-replaced"
        with self._opened(make=True) as root:
            _remove_leftovers(root)
            try:
                os.mkdir(temporary, 0o700, dir_fd=root)
                with opened_folder(temporary, root) as folder:
                    for name, data in files.items():
                        write_file(name, data, folder)
                    os.fchmod(folder, stat.S_IMODE(os.fstat(root).st_mode) & 0o755)
                with suppress(FileNotFoundError):
                    rename(entry, replaced, root)
                rename(temporary, entry, root)
            finally:
                remove(temporary, root)
                remove(replaced, root)
            self._keep_to_the_limit(root, sum(map(len, files.values())))
        return self.root / entry

    def _keep_to_the_limit(self, root: int, stored: int) -> None:
        """Remove what was not used for longest; entries are measured only now and then."""
        unmeasured = _stored_unmeasured.get(self.root)
        if unmeasured is not None and unmeasured + stored < self.limit // _SHARE_BETWEEN_SWEEPS:
            _stored_unmeasured[self.root] = unmeasured + stored
            return
        _stored_unmeasured[self.root] = 0
        room = self.limit
        for number, entry in enumerate(self.entries()):
            room -= entry.size
            if room < 0 and number > 0:  # the first was stored just now
                remove(entry.name, root)

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """The folder itself, made where it is missing and `make`; OSError where it is no use."""
        if make:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = os.path.realpath(self.root)  # whatever it leads to is checked when it is open
        with ExitStack() as opened:
            try:
                folder = opened_folder(path, called=f"the cache folder {shown(self.root)}")
                descriptor = opened.enter_context(folder)
            except UntrustedError as error:
                warn_memory_only(error.reason)
                raise
            yield descriptor


_stored_unmeasured: dict[Path, int] = {}  # bytes, since the entries of a folder were measured


def _is_entry(name: str) -> bool:
    return _ENTRY.fullmatch(name) is not None


def _measured(name: str, root: int) -> Entry | None:
    try:
        with opened_folder(name, root, trusted=False) as folder:
            size = sum(status_of(file, folder).st_size for file in os.listdir(folder))
            return Entry(name, size, os.fstat(folder).st_mtime)
    except OSError:
        return None


def _remove_leftovers(root: int) -> None:
    oldest = time.time() - _LEFTOVER_AFTER_S
    for name in os.listdir(root):
        if name.startswith(_TEMPORARY_PREFIX) or (name[0] == "." and name.endswith(".lock")):
            with suppress(OSError):
                if status_of(name, root).st_mtime < oldest:
                    remove(name, root)


def _manifest(key: str, files: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return json.dumps({"format": _FORMAT, "key": key, "sha256": digests}, indent=1).encode()


def _wait_for_lock(descriptor: int) -> bool:
    # Polled, since a blocking fcntl lock takes two processes of two threads each for a deadlock.
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        time.sleep(_LOCK_POLL_S)
    return False
