# SPDX-License-Identifier: Apache-2.0
"""A library is whole when it is loaded, and no compiler costs more than its time-out once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ptx_emulator
from ptx_emulator.native import build, load_native
from ptx_emulator.native.build import built_library
from tests.gate import one_in

CC = next(filter(None, map(shutil.which, build.COMPILERS)), None)
DAY_S = 24 * 3600
QUICK = build.OPTIONS[1:]  # a compiler that need not optimise takes a fraction of the time
NOBODY = 65534
USE = """
import sys
import numpy as np
from ptx_emulator.native import build, load_native
build.SECONDS = float(sys.argv[1])
build.OPTIONS = build.OPTIONS[1:]
native = load_native()
if native is None:
    sys.exit("NumPy")
print([native.has_subnormals(np.array([x], np.float32)) for x in (1.0, 1e-40)])
"""

pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler")


class Processes:
    """Processes that load the library of a folder, compiled by a `cc` that counts its starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.imports = Path(ptx_emulator.__file__).parents[1]
        self.cc(f'exec {CC} "$@"')

    def cc(self, script: str) -> None:
        program = self.folder / "bin" / "cc"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho started >> {self.log}\n{script}\n")
        program.chmod(0o755)

    def start(self, seconds: float = 60) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", USE, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "TMPDIR": str(self.folder),
                "PYTHONPATH": str(self.imports),
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            },
        )

    def load(self, count: int = 1, *, seconds: float = 60) -> list[str]:
        """What processes that start at once say: results of the library, or the last of stderr."""
        said = []
        for process in [self.start(seconds) for _ in range(count)]:
            out, error = process.communicate(timeout=120)
            assert process.returncode in (0, 1), (process.returncode, error)
            said.append(out.strip() if process.returncode == 0 else error.splitlines()[-1])
        return said

    def starts(self) -> int:
        return self.log.read_text().count("started") if self.log.exists() else 0

    def library(self) -> Path:
        (library,) = self.folder.glob("*/*.so")
        return library


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "a flipped bit": lambda whole: flipped(whole, len(whole) // 2),
}


@pytest.mark.parametrize("damage", one_in(3, DAMAGES, 2))
def test_a_damaged_library_is_compiled_again(processes: Processes, damage: str) -> None:
    assert processes.load() == ["[0, 1]"]
    library = processes.library()
    whole = library.read_bytes()
    library.write_bytes(DAMAGES[damage](whole))
    assert processes.load() == ["[0, 1]"]
    assert processes.library().read_bytes() == whole
    assert processes.starts() == 2


def test_processes_that_start_at_once_compile_once(processes: Processes) -> None:
    processes.cc(f'sleep 0.5\nexec {CC} "$@"')
    assert processes.load(4) == ["[0, 1]"] * 4
    assert processes.starts() == 1
    library = processes.library()
    library.write_bytes(b"")
    assert processes.load(4) == ["[0, 1]"] * 4
    assert processes.starts() == 2


def test_a_compiler_that_hangs_costs_its_time_once(processes: Processes) -> None:
    pid = processes.folder / "pid"
    processes.cc(f"sleep 600 &\necho $! > {pid}\nwait")
    begun = time.monotonic()
    assert processes.load(2, seconds=0.5) == ["NumPy"] * 2
    assert processes.load(seconds=0.5) == ["NumPy"]
    assert time.monotonic() - begun < 60
    assert processes.starts() == 1
    assert has_ended(int(pid.read_text()))
    (mark,) = processes.folder.glob("*/*.timed-out")
    yesterday = time.time() - DAY_S - 1
    os.utime(mark, (yesterday, yesterday))
    assert processes.load(seconds=0.5) == ["NumPy"]
    assert processes.starts() == 2
    processes.cc(f'exec {CC} "$@"')
    assert processes.load() == ["[0, 1]"]


def test_a_time_out_is_told(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes.cc("exec sleep 600")
    compiler = str(processes.folder / "bin" / "cc")
    monkeypatch.setattr(build, "COMPILERS", (compiler,))
    monkeypatch.setattr(build, "SECONDS", 0.2)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(processes.folder))
    assert load_native.__wrapped__() is None
    assert f"{compiler} did not end within 0.2 s" in caplog.text
    assert load_native.__wrapped__() is None
    assert len(caplog.records) == 1


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for a parent that does not ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the library of a user whom modes of files stop, which those of root do not."""
    was_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: parent)
        monkeypatch.setattr(build, "OPTIONS", QUICK)
        monkeypatch.setattr(build, "FOLDER", Path(shutil.copytree(build.FOLDER, f"{parent}/c")))
        user = NOBODY if was_root else os.geteuid()
        folder = Path(parent) / f"ptx_emulator-{user}"
        folder.mkdir(mode=0o700)
        if was_root:
            os.chown(folder, user, -1)
            os.seteuid(user)
        try:
            yield folder
        finally:
            folder.chmod(0o700)
            if was_root:
                os.seteuid(0)


def test_a_folder_that_is_only_read_serves_what_it_has(own_folder: Path) -> None:
    library = built_library()
    own_folder.chmod(0o500)
    assert built_library() == library
    assert load_native.__wrapped__() is not None


def test_what_is_damaged_in_a_folder_that_is_only_read_is_not_loaded(own_folder: Path) -> None:
    library = built_library()
    library.write_bytes(library.read_bytes()[:1000])
    own_folder.chmod(0o500)
    assert load_native.__wrapped__() is None
    assert library.stat().st_size == 1000
    own_folder.chmod(0o700)
    assert load_native.__wrapped__() is not None


def test_nothing_is_compiled_into_a_folder_that_is_only_read(own_folder: Path) -> None:
    own_folder.chmod(0o500)
    assert load_native.__wrapped__() is None
    assert list(own_folder.iterdir()) == []
