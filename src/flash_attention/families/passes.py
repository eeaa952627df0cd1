# SPDX-License-Identifier: Apache-2.0
"""Pass: the forward and the backward pass of attention."""

from __future__ import annotations

from enum import Enum

from flash_attention.errors import UnsupportedError, quoted


class Pass(Enum):
    """A pass. The value is its name in commands and in the names of kernels."""

    FORWARD = "forward"
    BACKWARD = "backward"


def read_pass(argument: str, given: object) -> Pass:
    """Return the pass that an argument names. Raises UnsupportedError if it names none."""
    for one in Pass:
        if given in (one, one.value):
            return one
    raise UnsupportedError(
        f"{argument} is {quoted(given)}; choose from {', '.join(one.value for one in Pass)}"
    )
