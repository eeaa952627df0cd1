# SPDX-License-Identifier: Apache-2.0
"""Pass: the forward and the backward pass of attention."""

from __future__ import annotations

from enum import Enum


class Pass(Enum):
    """A pass. The value is its name in commands and in the names of kernels."""

    FORWARD = "forward"
    BACKWARD = "backward"
