# SPDX-License-Identifier: Apache-2.0
"""One compile by NVRTC: PTX, cubin and log; needs no driver and no toolkit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flash_attention.compile.elf import build_id
from flash_attention.errors import CompileError, UnsupportedError

try:
    from cuda.bindings import nvrtc
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
except ImportError as error:  # said when something is to be compiled
    _import_error: ImportError | None = error
else:
    _import_error = None

_WHEEL = "nvidia-cuda-nvrtc"
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True)
class Compilation:
    """What NVRTC made of one source."""

    ptx: str
    cubin: bytes
    log: str
    seconds: float


class RefusedSourceError(CompileError):
    """NVRTC did not accept the source or the options; the log says why."""

    def __init__(self, log: str) -> None:
        super().__init__("NVRTC refused", log=log)


def options(arch: str) -> tuple[str, ...]:
    """The options of every compile for `arch`, all but the include folder.

    -no-cache, because what NVRTC takes from the driver's own cache comes without a log.
    """
    return (f"-arch={arch}", "-std=c++20", "--ptxas-options=-v", "-lineinfo", "-no-cache")


def check_arch(arch: str) -> None:
    """Raise UnsupportedError unless the installed NVRTC makes machine code for `arch`."""
    supported = _call("nvrtcGetSupportedArchs")
    number = _ARCH.fullmatch(arch)
    if number is None or int(number.group(1)) not in supported:
        known = ", ".join(f"sm_{number}" for number in supported)
        raise UnsupportedError(
            f"cannot compile for {arch!r}; NVRTC {nvrtc_version()} compiles for {known}"
        )


def nvrtc_version() -> str:
    """The release NVRTC reports, such as "13.0"."""
    major, minor = _call("nvrtcVersion")
    return f"{major}.{minor}"


@cache
def compiler_identity() -> str:
    """Release and build of the loaded NVRTC: patch releases report the same version."""
    version = nvrtc_version()
    library = _library_path()
    return f"{version} {build_id(library) or library.stat().st_size}"


def compile_source(source: str, *, source_name: str, arguments: Sequence[str]) -> Compilation:
    """Compile `source`; `source_name` is its path in line information and messages."""
    program = _call("nvrtcCreateProgram", source.encode(), source_name.encode(), 0, [], [])
    try:
        start = time.perf_counter()
        _call(
            "nvrtcCompileProgram",
            program,
            len(arguments),
            [argument.encode() for argument in arguments],
            explain=lambda: _text(program, "ProgramLog"),
        )
        seconds = time.perf_counter() - start
        cubin = _output(program, "CUBIN")
        return Compilation(_text(program, "PTX"), cubin, _text(program, "ProgramLog"), seconds)
    finally:
        _call("nvrtcDestroyProgram", program)


def _text(program: Any, what: str) -> str:
    return _output(program, what).decode("utf-8", "replace").rstrip("\0\n ") + "\n"


def _output(program: Any, what: str) -> bytes:
    size = _call(f"nvrtcGet{what}Size", program)
    buffer = bytearray(size)
    _call(f"nvrtcGet{what}", program, buffer)
    return bytes(buffer)


def _call(name: str, *arguments: Any, explain: Callable[[], str] | None = None) -> Any:
    _library_path()
    result, *values = getattr(nvrtc, name)(*arguments)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = explain() if explain else ""
        raise RefusedSourceError(log.strip() or f"{name} failed: {result.name}")
    return values[0] if len(values) == 1 else values


@cache
def _library_path() -> Path:
    """The library the bindings use, loaded here first so that a missing one is explained."""
    if _import_error is not None:
        raise CompileError(
            "kernels are compiled through cuda-bindings, which cannot be imported "
            f"({_import_error}); pip install cuda-bindings {_WHEEL}"
        )
    try:
        return Path(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except DynamicLibNotFoundError as error:
        raise CompileError(
            f"the CUDA compiler library NVRTC was not found; install it: pip install {_WHEEL}",
            log=str(error),
        ) from None
