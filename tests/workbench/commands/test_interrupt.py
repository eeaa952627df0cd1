# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a terminal ends a command at once, whatever it does, and leaves nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gate import one_in

pytestmark = pytest.mark.slow  # left out of `make quick`

AT_ONCE_S = 5.0  # a second, on a machine that has other things to do
COMMANDS = (
    "build --set progression --jobs 2",
    "check --emulate --shape 1,256,4,2,64",
    "ladder run --arch sm_80",
    "emulate",
)


def start(command: str, cache: Path) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "flash_attention", *command.split()],
        env=os.environ
        | {"FLASH_ATTENTION_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_a_lock(cache: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not list(cache.glob(".*.lock")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("command", one_in(4, COMMANDS, id_of=lambda it: it.split()[0]))
def test_a_command_that_compiles_is_stopped(command: str, tmp_path: Path) -> None:
    process = start(command, tmp_path)
    wait_for_a_lock(tmp_path, process)
    time.sleep(0.1)
    pressed = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - pressed < AT_ONCE_S
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert len(list(tmp_path.iterdir())) < 10  # of the 64 of `build`


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_a_command_that_still_imports_is_stopped(module: str) -> None:
    """The import of `module` presses Ctrl-C and swallows the KeyboardInterrupt, as torch may."""
    code = (
        "import signal, sys\n"
        "from flash_attention_workbench.start import main\n"
        "class Presses:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            try:\n"
        "                signal.raise_signal(signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                pass\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Presses())\n"
        "sys.argv = ['flash-attention', 'doctor']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_script_that_compiles_is_interrupted(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "from flash_attention.ladder import get_ladder\n"
        "from flash_attention.launch.kernels import compile_config\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "config = get_ladder()[-1].config\n"
        "try:\n"
        "    compile_config(config, config.default_arch)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ
        | {"FLASH_ATTENTION_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_a_lock(tmp_path, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (1, "interrupted\n")
    assert list(tmp_path.iterdir()) == []
