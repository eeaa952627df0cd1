# SPDX-License-Identifier: Apache-2.0
"""From CUDA text to PTX, with the headers that the caller names.

NVRTC compiles device code. A text with host code, or with headers that NVRTC does not find, is
compiled by nvcc where a toolkit is installed. Where none is, or where headers of a library of the
host are missing, NVRTC compiles it without host code, behind what nvcc would include of itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptx_emulator.errors import CompileError
from ptx_emulator.user_kernel.host_code import without_host_code
from ptx_emulator.user_kernel.host_headers import CUDA_HEADERS, HOST_HEADERS, IMPLIED
from ptx_emulator.user_kernel.host_includes import device_headers
from ptx_emulator.user_kernel.nvcc import find_nvcc, ptx_of_nvcc
from ptx_emulator.user_kernel.nvrtc import (
    Compiled,
    RefusedSourceError,
    check_arch,
    compile_to_ptx,
    nvrtc_version,
)

TOOLKITS = ("CUDA_HOME", "CUDA_PATH")  # variables that name one
# As NVRTC says it, gcc and clang
NO_HEADER = re.compile("cannot open source file|No such file or directory|file not found")
# Some files ask for the system.
AS_NVCC = ("-default-device", "-D__linux__=1", *(f"-include={name}" for name in IMPLIED))
STANDARDS = ("c++20", "c++17")  # of which older files know the second alone


@dataclass(frozen=True)
class Unit:
    """A text to compile: `name` is its path in line information and messages, `entry` a kernel, as
    in `scale<float, 64>`, that only exists where it is named."""

    source: str
    name: str
    arch: str
    include: Sequence[Path] = ()
    defines: Sequence[str] = field(default=())
    entry: str | None = None


def compile_cuda(unit: Unit) -> Compiled:
    """The PTX of a text."""
    check_arch(unit.arch)
    toolkit = toolkit_headers()
    headers = HOST_HEADERS if toolkit else HOST_HEADERS | CUDA_HEADERS
    try:
        return _by_nvrtc(unit, unit.source, headers, toolkit)
    except RefusedSourceError as refusal:
        log = refusal.log
    on_device = without_host_code(unit.source)
    has_host_code = on_device != unit.source
    nvcc = find_nvcc() if has_host_code or NO_HEADER.search(log) else None
    if nvcc is not None:
        try:
            return _by_nvcc(nvcc, unit)
        except RefusedSourceError as refusal:
            log = refusal.log
    folders = (Path(unit.name).parent, *unit.include)
    on_device, mine = device_headers(on_device, folders, toolkit, own_too=has_host_code)
    try:
        return _by_nvrtc(unit, on_device, {**headers, **mine, **IMPLIED}, toolkit, AS_NVCC)
    except RefusedSourceError as refusal:
        if NO_HEADER.search(log):
            log = f"{refusal.log}\n{log}"
        elif nvcc is None:
            log = refusal.log
    raise CompileError(f"NVRTC {nvrtc_version()} cannot compile {unit.name} for {unit.arch}", log)


def _by_nvcc(nvcc: str, unit: Unit) -> Compiled:
    """What the newest standard that accepts the text makes of it, or the log of the newest."""
    refusals = []
    for standard in STANDARDS:
        try:
            options = _options(unit, (), standard)
            return ptx_of_nvcc(nvcc, unit.source, unit.name, options, unit.entry)
        except RefusedSourceError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _by_nvrtc(
    unit: Unit,
    source: str,
    headers: Mapping[str, str],
    toolkit: Sequence[Path],
    more: Sequence[str] = (),
) -> Compiled:
    arguments = (*_options(unit, toolkit), *more)
    return compile_to_ptx(
        source, name=unit.name, arguments=arguments, headers=headers, entry=unit.entry
    )


def _options(unit: Unit, toolkit: Sequence[Path], standard: str = STANDARDS[0]) -> tuple[str, ...]:
    return (
        f"-arch={unit.arch.replace('sm_', 'compute_')}",
        f"-std={standard}",
        "-lineinfo",
        *(f"-D{define}" for define in unit.defines),
        *(f"-I{folder}" for folder in (*unit.include, *toolkit)),
    )


def toolkit_headers() -> list[Path]:
    """Where cuda_fp16.h and its like are, if a CUDA toolkit is installed."""
    roots = [os.environ[name] for name in TOOLKITS if os.environ.get(name)]
    folders = (Path(root) / "include" for root in (*roots, "/usr/local/cuda"))
    found = [folder for folder in folders if folder.is_dir()][:1]
    return [*found, *(folder / "cccl" for folder in found if (folder / "cccl").is_dir())]
