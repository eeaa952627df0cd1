# SPDX-License-Identifier: Apache-2.0
"""From CUDA text to PTX, with the headers that the caller names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flash_attention.compile.nvrtc import (
    RefusedSourceError,
    check_arch,
    compile_source,
    nvrtc_version,
)
from flash_attention.errors import CompileError

TOOLKITS = ("CUDA_HOME", "CUDA_PATH")  # variables that name one


def compile_cuda(source: str, *, name: str, arch: str, include: Sequence[Path]) -> str:
    """The PTX of a CUDA text; `name` is its path in line information and messages."""
    check_arch(arch)
    folders = [*include, *_toolkit_headers()]
    arguments = (
        f"-arch={arch.replace('sm_', 'compute_')}",
        "-std=c++20",
        "-lineinfo",
        *(f"-I{folder}" for folder in folders),
    )
    try:
        return compile_source(source, source_name=name, arguments=arguments).ptx
    except RefusedSourceError as refusal:
        raise CompileError(
            f"NVRTC {nvrtc_version()} cannot compile {name} for {arch}", log=refusal.log
        ) from None


def _toolkit_headers() -> list[Path]:
    """Where cuda_fp16.h and its like are, if a CUDA toolkit is installed."""
    roots = [os.environ[name] for name in TOOLKITS if os.environ.get(name)]
    folders = (Path(root) / "include" for root in (*roots, "/usr/local/cuda"))
    return [folder for folder in folders if folder.is_dir()][:1]
