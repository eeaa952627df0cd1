# SPDX-License-Identifier: Apache-2.0
"""Strict mode: a call on the CPU raises an error if it would on a GPU."""

from __future__ import annotations

import os

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.call.call import Call
from flash_attention.errors import UnsupportedError
from flash_attention.launch.plan import Plan

VARIABLE = "FLASH_ATTENTION_STRICT"


def strict_arch() -> Arch | None:
    """Return the architecture that $FLASH_ATTENTION_STRICT names, or the oldest if it is 1. Returns
    None if it is 0, empty or not set."""
    value = os.environ.get(VARIABLE, "")
    if value in ("", "0"):
        return None
    if value != "1" and value not in ARCHES:
        raise UnsupportedError(
            f"{VARIABLE} is {value!r}; allowed are 0, 1 for {DEFAULT_ARCH.name}, and the names of"
            f" architectures: {', '.join(ARCHES)}"
        )
    return ARCHES.get(value, DEFAULT_ARCH)


def check_as_on_a_gpu(call: Call) -> None:
    """In strict mode, raise the error that a GPU would cause. Nothing is compiled."""
    arch = strict_arch()
    if arch is not None:
        Plan(call, arch=arch).bind(call)
