# SPDX-License-Identifier: Apache-2.0
"""From CUDA text with host code to PTX by nvcc, where a toolkit is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ptx_emulator.user_kernel.nvrtc import Compiled, RefusedSourceError

SECONDS = 300.0  # that nvcc may take
NAMED = "ptx_emulator_entry"  # a variable that holds the kernel that is meant
_NAMED = re.compile(rf"^\.[^\n]*\b{NAMED}(?:\[1\])? = \{{?(\w+)\}}?;", re.MULTILINE)


def find_nvcc() -> str | None:
    """The compiler of the toolkit that the environment names, or that the shell finds."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        path = Path(os.environ.get(variable, "")) / "bin" / "nvcc"
        if os.environ.get(variable) and path.is_file():
            return str(path)
    return shutil.which("nvcc")


def ptx_of_nvcc(
    nvcc: str, source: str, name: str, options: Sequence[str], entry: str | None
) -> Compiled:
    """The PTX of a text that may have host code; a kernel that is named is instantiated."""
    shown = name.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f'#line 1 "{shown}"', source]
    if entry is not None:
        lines.append(f'extern "C" __device__ const void* const {NAMED} = (const void*)&{entry};')
    with TemporaryDirectory() as folder:
        text, ptx = Path(folder) / "unit.cu", Path(folder) / "unit.ptx"
        text.write_text("\n".join(lines) + "\n")
        beside = f"-I{Path(name).parent}"
        command = [nvcc, "-ptx", *options, beside, "--expt-relaxed-constexpr"]
        command += ["--expt-extended-lambda", "-o", str(ptx), str(text)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RefusedSourceError(f"{nvcc}: {error}") from None
        if done.returncode != 0 or not ptx.is_file():
            raise RefusedSourceError(done.stderr.strip() or f"{nvcc} ended with {done.returncode}")
        made = ptx.read_text()
    found = _NAMED.search(made)
    return Compiled(made, found[1] if found else None)
