# SPDX-License-Identifier: Apache-2.0
"""Pass: the forward and the backward pass of attention, and its derivative in forward mode."""

from __future__ import annotations

from enum import Enum

from flash_attention.errors import UnsupportedError, quoted


class Pass(Enum):
    """A pass. The value is its name in commands and in the names of kernels."""

    FORWARD = "forward"
    BACKWARD = "backward"
    TANGENT = "tangent"  # the output and its tangent

    @property
    def has_ladder(self) -> bool:
        """Whether the kernels of the pass have rungs."""
        return self is not Pass.TANGENT


def read_pass(argument: str, given: object) -> Pass:
    """Return the pass that an argument names. Raises UnsupportedError if it names none."""
    for one in Pass:
        if given in (one, one.value):
            return one
    raise UnsupportedError(
        f"{argument} is {quoted(given)}; choose from {', '.join(one.value for one in Pass)}"
    )
