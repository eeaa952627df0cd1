# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one folder a kernel, complete or absent, checked by digest."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flash_attention.compile.notices import warn_memory_only

SOURCE, CUBIN, PTX, LOG = "kernel.cu", "kernel.cubin", "kernel.ptx", "kernel.log"

_MANIFEST = "manifest.json"
_FORMAT = "flash_attention compile cache 1"
_TEMPORARY_PREFIX = ".tmp-"
_LEFTOVER_AFTER_S = 3600.0  # no compile takes an hour: what is older was left by a dead process
_LOCK_PATIENCE_S = 120.0  # a lock held longer belongs to a stopped process
_LOCK_POLL_S = 0.01


def cache_dir() -> Path:
    """The folder of compiled kernels, which need not exist yet."""
    chosen = os.environ.get("FLASH_ATTENTION_CACHE_DIR")
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # a user without a home
        return Path(tempfile.gettempdir()) / f"flash_attention-{os.geteuid()}"
    return Path(base) / "flash_attention"


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


class DiskCache:
    """The entries below one folder; what cannot be stored is reported once, never raised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._refusal = _why_not_trusted(root)
        if self._refusal:
            warn_memory_only(self._refusal)

    def load(self, entry: str, key: str) -> dict[str, bytes] | None:
        """The files of an entry, None unless all are there and whole."""
        if self._refusal:
            return None
        folder = self.root / entry
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            files = {name: (folder / name).read_bytes() for name in (SOURCE, CUBIN, PTX, LOG)}
        except (OSError, ValueError):
            return None
        return files if manifest == _manifest(key, files) else None

    def store(self, entry: str, key: str, files: Mapping[str, bytes]) -> Path | None:
        """Keep a kernel; its folder, or None when it could not be written."""
        manifest = json.dumps(_manifest(key, files), indent=1).encode()
        try:
            return self._publish(entry, {**files, _MANIFEST: manifest})
        except OSError as error:
            if self.load(entry, key) is not None:  # another process was faster
                return self.root / entry
            warn_memory_only(f"cannot write to {self.root} ({error.strerror or error})")
            return None

    def store_failure(self, entry: str, source: bytes, log: bytes) -> Path | None:
        """Keep a source NVRTC refused, for people to read; `load` takes it for a miss."""
        try:
            return self._publish(entry, {SOURCE: source, LOG: log})
        except OSError:
            return None

    @contextmanager
    def lock(self, entry: str) -> Iterator[None]:
        """Hold an entry against other processes, where the file system knows locks."""
        path = self.root / f".{entry}.lock"
        descriptor = None
        with suppress(OSError):
            self._make_root()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            _wait_for_lock(descriptor)
        try:
            yield
        finally:
            if descriptor is not None:
                # Whoever waits on the removed file looks for the entry again when it gets it.
                with suppress(OSError):
                    path.unlink()
                os.close(descriptor)

    def _publish(self, entry: str, files: Mapping[str, bytes]) -> Path:
        self._make_root()
        self._remove_leftovers()
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=self.root))
        replaced = Path(f"{temporary}-replaced")
        try:
            for name, data in files.items():
                _write(temporary / name, data)
            temporary.chmod(stat.S_IMODE(self.root.stat().st_mode) & 0o755)
            folder = self.root / entry
            with suppress(FileNotFoundError):
                folder.rename(replaced)
            temporary.rename(folder)
            return folder
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)

    def _make_root(self) -> None:
        if not self._refusal:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refusal = _why_not_trusted(self.root)
        if self._refusal:
            raise PermissionError(errno.EACCES, self._refusal)

    def _remove_leftovers(self) -> None:
        oldest = time.time() - _LEFTOVER_AFTER_S
        for path in [*self.root.glob(f"{_TEMPORARY_PREFIX}*"), *self.root.glob(".*.lock")]:
            with suppress(OSError):
                if path.stat().st_mtime >= oldest:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _why_not_trusted(root: Path) -> str | None:
    """Machine code is loaded from `root`, so only its user, or root, may have written there."""
    try:
        status = root.stat()
    except OSError:
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"the cache folder {root} belongs to another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWOTH:
        return f"the cache folder {root} can be written by every user"
    return None


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
        file.write(data)


def _manifest(key: str, files: Mapping[str, bytes]) -> dict[str, object]:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {"format": _FORMAT, "key": key, "sha256": digests}


def _wait_for_lock(descriptor: int) -> None:
    # Polled, since a blocking fcntl lock takes two processes of two threads each for a deadlock.
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        time.sleep(_LOCK_POLL_S)
