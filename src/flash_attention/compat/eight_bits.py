# SPDX-License-Identifier: Apache-2.0
"""8-bit tensors in functions that have no parameters for their descale factors."""

from __future__ import annotations

from torch import Tensor

from flash_attention.call.results import E4M3
from flash_attention.errors import UnsupportedError


def without_factors(function: str, instead: str, **tensors: Tensor) -> str | None:
    """Say why a function does not take a tensor of 8 bits, if one is given, and what does."""
    for name, tensor in tensors.items():
        if getattr(tensor, "dtype", None) == E4M3:
            return (
                f"{name} is {E4M3}, and {function} has no parameters for descale factors; call"
                f" {instead}, which takes q_descale, k_descale and v_descale, or convert {name} to"
                " 16 bits"
            )
    return None


def refuse_without_factors(function: str, instead: str, **tensors: Tensor) -> None:
    """Raise UnsupportedError if a tensor of 8 bits is given."""
    if reason := without_factors(function, instead, **tensors):
        raise UnsupportedError(reason)
