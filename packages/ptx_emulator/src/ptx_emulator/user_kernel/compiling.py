# SPDX-License-Identifier: Apache-2.0
"""From CUDA text to PTX, with the headers that the caller names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ptx_emulator.errors import CompileError
from ptx_emulator.user_kernel.host_headers import CUDA_HEADERS, HOST_HEADERS
from ptx_emulator.user_kernel.nvrtc import (
    RefusedSourceError,
    check_arch,
    compile_to_ptx,
    nvrtc_version,
)

TOOLKITS = ("CUDA_HOME", "CUDA_PATH")  # variables that name one


def compile_cuda(source: str, *, name: str, arch: str, include: Sequence[Path]) -> str:
    """The PTX of a CUDA text; `name` is its path in line information and messages."""
    check_arch(arch)
    toolkit = toolkit_headers()
    arguments = (
        f"-arch={arch.replace('sm_', 'compute_')}",
        "-std=c++20",
        "-lineinfo",
        *(f"-I{folder}" for folder in (*include, *toolkit)),
    )
    headers = HOST_HEADERS if toolkit else HOST_HEADERS | CUDA_HEADERS
    try:
        return compile_to_ptx(source, name=name, arguments=arguments, headers=headers)
    except RefusedSourceError as refusal:
        raise CompileError(
            f"NVRTC {nvrtc_version()} cannot compile {name} for {arch}", refusal.log
        ) from None


def toolkit_headers() -> list[Path]:
    """Where cuda_fp16.h and its like are, if a CUDA toolkit is installed."""
    roots = [os.environ[name] for name in TOOLKITS if os.environ.get(name)]
    folders = (Path(root) / "include" for root in (*roots, "/usr/local/cuda"))
    found = [folder for folder in folders if folder.is_dir()][:1]
    return [*found, *(folder / "cccl" for folder in found if (folder / "cccl").is_dir())]
