# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine and this checkout that belong beside a measurement."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import torch

from flash_attention import compile as compiler
from flash_attention.errors import UnsupportedError


def describe(device: torch.device | None = None) -> dict[str, str | None]:
    """What every results file says of where and when it was measured."""
    return {
        "device": torch.cuda.get_device_name(device),
        "driver": driver_version(),
        **describe_host(),
    }


def describe_host() -> dict[str, str | None]:
    """The part of it that needs no GPU."""
    return {
        "nvrtc": compiler.nvrtc_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": git_commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def driver_version() -> str:
    """The NVIDIA driver's own version and the newest CUDA it supports: "580.82.07 (CUDA 13.0)"."""
    from cuda.bindings import driver

    try:
        error, version = driver.cuDriverGetVersion()
    except RuntimeError as missing:
        raise UnsupportedError(f"no NVIDIA driver on this machine: {missing}") from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise UnsupportedError(f"the NVIDIA driver does not answer: {error.name}")
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    own = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{own.splitlines()[0]} ({cuda})" if own else cuda


def git_commit() -> str | None:
    """The commit this package was run from, "-dirty" when changed; None outside a checkout."""
    return output_of("git", "-C", str(Path(__file__).parent), *_DESCRIBE)


_DESCRIBE = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def output_of(*command: str) -> str | None:
    """What a program prints; None where it is missing, fails or prints nothing."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
