# SPDX-License-Identifier: Apache-2.0
"""Whether strict mode is on, and which GPU it assumes."""

from __future__ import annotations

import os

from torch import Tensor

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.errors import UnsupportedError

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


def kernels_compute(tensor: Tensor) -> bool:
    """Whether kernels compute with a tensor: on a GPU, or on the one that strict mode assumes."""
    return not tensor.is_cpu or strict_arch() is not None
