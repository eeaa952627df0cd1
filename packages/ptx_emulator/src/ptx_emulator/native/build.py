# SPDX-License-Identifier: Apache-2.0
"""The C of this folder as a library on disk, compiled once a machine.

The library lies in a folder of the user's own among the temporary files. Its digest is in its name,
so that one rename publishes both: what has another digest was damaged, and is compiled again. A
compiler that took too long is not started again for a day.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-O3", "-march=native", "-shared", "-fPIC", f"-DOBJECT_BYTES={object.__basicsize__}")
SECONDS = 60.0  # that a compiler may take
TRIED_AGAIN_AFTER_S = 24 * 3600.0
_MARGIN_S = 10.0  # for another process to end its compiler
_POLL_S = 0.02


def built_library() -> Path:
    """Return the library, whole. Raises OSError or SubprocessError where there can be none."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no C compiler: {', '.join(COMPILERS)}")
    folder = _own_folder()
    sources = sorted(FOLDER.glob("*.c"))
    texts = [path.read_text() for path in (*sources, *sorted(FOLDER.glob("*.h")))]
    facts = os.stat(compiler)
    described = (texts, compiler, facts.st_mtime_ns, facts.st_size, OPTIONS, _processor())
    key = hashlib.sha256(repr(described).encode()).hexdigest()[:32]
    library = _whole(folder, key)
    if library is None:
        _check_patience(folder, key)
        with _alone(folder, key):
            library = _whole(folder, key)
            if library is None:
                _check_patience(folder, key)
                library = _compiled(compiler, sources, folder, key)
    return library


def _own_folder() -> Path:
    """Return a folder that nobody else can change."""
    folder = Path(tempfile.gettempdir()) / f"ptx_emulator-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _whole(folder: Path, key: str) -> Path | None:
    """Return a library that has the digest of its name, and remove those that have not."""
    for library in folder.glob(f"{key}-*.so"):
        with suppress(OSError):  # another process may have removed it
            if library.name == _name(key, library):
                return library
            library.unlink()
    return None


def _name(key: str, library: Path) -> str:
    return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"


def _compiled(compiler: str, sources: Sequence[Path], folder: Path, key: str) -> Path:
    unfinished = folder / f"{key}.{os.getpid()}"
    try:
        _run((compiler, *OPTIONS, *map(str, sources), "-lm", "-o", str(unfinished)))
        return unfinished.replace(folder / _name(key, unfinished))
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            _timed_out(folder, key).touch()
        logging.getLogger("ptx_emulator").warning(
            "%s did not end within %g s; the emulator computes with NumPy alone, which is slower,"
            " and starts it again in a day",
            *(compiler, SECONDS),
        )
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def _run(command: Sequence[str]) -> None:
    """Run a compiler, and end it and all that it started if it takes too long."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    ) as process:
        try:
            code = process.wait(SECONDS)
        except BaseException:  # Ctrl-C, too
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if code != 0:
        raise subprocess.CalledProcessError(code, command)


def _timed_out(folder: Path, key: str) -> Path:
    """Return the mark of a compiler that took too long."""
    return folder / f"{key}.timed-out"


def _check_patience(folder: Path, key: str) -> None:
    """Raise TimeoutError if the compiler took too long not long ago."""
    with suppress(FileNotFoundError):
        if abs(time.time() - _timed_out(folder, key).stat().st_mtime) < TRIED_AGAIN_AFTER_S:
            raise TimeoutError("the C compiler took too long")


@contextmanager
def _alone(folder: Path, key: str) -> Iterator[None]:
    """Wait while another process compiles, where the file system knows locks."""
    with (folder / f"{key}.lock").open("w") as file:
        end = time.monotonic() + SECONDS + _MARGIN_S  # a stopped process holds a lock for longer
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:
                break
        yield


def _processor() -> str:
    """What the processor can do, as another one may not run what was compiled for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = (line for line in lines if line.lower().startswith(("flags", "features")))
    return platform.machine() + next(flags, platform.processor())
