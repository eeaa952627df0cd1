# SPDX-License-Identifier: Apache-2.0
"""From CUDA text with host code to PTX by nvcc, where a toolkit is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ptx_emulator.user_kernel.nvrtc import (
    NOT_IN_LINE_INFORMATION,
    Compiled,
    RefusedSourceError,
)

SECONDS = 300.0  # that nvcc may take
NAMED = "ptx_emulator_entry"  # a variable that holds the kernel that is meant
_NAMED = re.compile(rf"^\.[^\n]*\b{NAMED}(?:\[1\])? = \{{?(\w+)\}}?;", re.MULTILINE)


def find_nvcc() -> str | None:
    """The compiler of the toolkit that the environment names, that the shell finds, or that is
    where toolkits are installed."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        path = Path(os.environ.get(variable, "")) / "bin" / "nvcc"
        if os.environ.get(variable) and path.is_file():
            return str(path)
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def line_one(name: str) -> str:
    """The directive by which the text behind it is that of a file, in line information."""
    shown = NOT_IN_LINE_INFORMATION.sub("?", name)
    return f'#line 1 "{shown}"\n'


def ptx_of_nvcc(
    nvcc: str, source: str, name: str, options: Sequence[str], entry: str | None
) -> Compiled:
    """The PTX of a text that may have host code; a kernel that is named is instantiated."""
    lines = [line_one(name) + source]
    if entry is not None:
        lines.append(f'extern "C" __device__ const void* const {NAMED} = (const void*)&{entry};')
    with TemporaryDirectory() as folder:
        text, ptx = Path(folder) / "unit.cu", Path(folder) / "unit.ptx"
        text.write_text("\n".join(lines) + "\n")
        beside = f"-I{Path(name).parent}"
        command = [nvcc, "-ptx", *options, beside, "--expt-relaxed-constexpr"]
        command += ["--expt-extended-lambda", "-o", str(ptx), str(text)]
        code, said = _run(command)
        if code != 0 or not ptx.is_file():
            raise RefusedSourceError(said.strip() or f"{nvcc} ended with {code}")
        made = ptx.read_text()
    found = _NAMED.search(made)
    return Compiled(made, found[1] if found else None)


def _run(command: Sequence[str]) -> tuple[int, str]:
    """The exit code and what is said; what takes too long is ended with all that it started."""
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        with subprocess.Popen(
            command, stdout=nothing, stderr=pipe, text=True, start_new_session=True
        ) as process:
            try:
                _, said = process.communicate(timeout=SECONDS)
            except BaseException:  # Ctrl-C, too
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedSourceError(f"{command[0]}: {error}") from None
    return process.returncode, said
