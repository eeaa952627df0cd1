# SPDX-License-Identifier: Apache-2.0
"""Which NVRTC compiles: the one of our own wheel, or one whose machine code the driver loads.

torch built for CUDA 12 brings an NVRTC of its own and loads it, so the library is opened by its
path: a search by name would find the one that is loaded already.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from flash_attention.errors import CompileError

WHEEL, WHEEL_OF_CUDA_12 = "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"
_CUDA_13 = (13, 0)


@dataclass(frozen=True)
class Nvrtc:
    """The library, opened, with its path and the reason why it is this one."""

    handle: ctypes.CDLL
    path: Path
    why: str


@cache
def nvrtc_library() -> Nvrtc:
    """The NVRTC of this process; CompileError, which says what to install, where there is none."""
    path, why = _choice(_in_wheel(WHEEL), _in_wheel(WHEEL_OF_CUDA_12), _driver_supports())
    try:
        # Some releases do not look for their other half in their own folder.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        return Nvrtc(ctypes.CDLL(str(path)), path, why)
    except OSError as error:
        raise CompileError(
            f"the CUDA compiler library cannot be loaded ({error}); "
            f"pip install --force-reinstall {WHEEL}"
        ) from None


def _choice(
    ours: Path | None, of_cuda_12: Path | None, driver: tuple[int, int] | None
) -> tuple[Path, str]:
    if of_cuda_12 and driver and driver < _CUDA_13:
        supports = f"the driver supports CUDA {driver[0]}.{driver[1]}"
        return of_cuda_12, f"of {WHEEL_OF_CUDA_12}: {supports} and loads no machine code of 13"
    if ours and of_cuda_12:
        return ours, f"of {WHEEL}; that of {WHEEL_OF_CUDA_12}, which torch brought, is left alone"
    if ours:
        return ours, f"of {WHEEL}"
    return _outside_the_wheels(), f"of this machine: {WHEEL} is not installed"


def _in_wheel(name: str) -> Path | None:
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith("libnvrtc.so."):
            path = Path(os.fspath(file.locate()))
            return path if path.is_file() else None
    return None


def _driver_supports() -> tuple[int, int] | None:
    """The newest CUDA of the installed driver; asked only where there is a choice to make."""
    if _in_wheel(WHEEL_OF_CUDA_12) is None:
        return None
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except OSError:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _outside_the_wheels() -> Path:
    """That of a toolkit or of conda."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise _not_found(error) from None
    try:
        return Path(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except DynamicLibNotFoundError as error:
        raise _not_found(error) from None


def _not_found(reason: Exception) -> CompileError:
    return CompileError(
        f"the CUDA compiler library NVRTC was not found; install it: pip install {WHEEL}",
        log=str(reason),
    )
