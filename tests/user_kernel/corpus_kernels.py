# SPDX-License-Identifier: Apache-2.0
"""Kernels of the corpus, compiled once a file, and a run that must find nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ptx_emulator import UserKernel, UserRun
from ptx_emulator.user_kernel.compiling import Unit, compile_cuda

CORPUS = Path(__file__).parent / "corpus"


@cache
def ptx_of(file: str, arch: str) -> str:
    text = (CORPUS / file).read_text()
    return compile_cuda(Unit(text, str(CORPUS / file), arch)).ptx


def corpus_kernel(file: str, entry: str, arch: str = "sm_80") -> UserKernel:
    return UserKernel.of_ptx(ptx_of(file, arch), entry)


def clean(kernel: UserKernel, *args: Any, **launch: Any) -> UserRun:
    """Run a kernel that has no mistake."""
    result = kernel.run(*args, **launch)
    assert [str(finding) for finding in result.findings] == []
    return result


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(*shape: int, seed: int = 0, largest: int = 10) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, largest, shape).astype(np.int32)
