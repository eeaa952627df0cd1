# SPDX-License-Identifier: Apache-2.0
"""Whether functions of other libraries, which have no parameter `validate`, read values to check
them."""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

VARIABLE = "FLASH_ATTENTION_VALIDATE"

validates = os.environ.get(VARIABLE, "0") not in ("", "0")
"""Whether values on a GPU are checked too, for which every call waits."""


def has_values(numbers: Tensor) -> bool:
    """Whether the values are read: on the CPU, where nothing has to be waited for, and on a GPU if
    the environment asks for that and no CUDA graph is captured."""
    if torch.compiler.is_compiling() or isinstance(numbers, FakeTensor):
        return False
    if numbers.device.type == "cpu":
        return True
    return validates and numbers.is_cuda and not torch.cuda.is_current_stream_capturing()
