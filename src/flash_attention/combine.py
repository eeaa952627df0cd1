# SPDX-License-Identifier: Apache-2.0
"""The second launch of a call with keys in chunks: parts become rows of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention import driver
from flash_attention.chunks import COMBINE_THREADS, Chunks
from flash_attention.dispatch import get_combine_kernel
from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import DType
from flash_attention.problem import Problem

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction


class Combine:
    """The kernel that combines parts on a CUDA device, and the memory they take on the way."""

    def __init__(
        self, chunks: Chunks, problem: Problem, dtype: DType, target: str, device_index: int
    ) -> None:
        self._dtype = dtype
        self._target = target
        self._device_index = device_index
        self._output_bytes = chunks.output_bytes(problem)
        self._bytes = self._output_bytes + chunks.lse_bytes(problem)
        self._shape = (chunks.combine_grid(problem), 1, 1, COMBINE_THREADS, 1, 1, 0)
        self._function: CUfunction | None = None

    def load(self) -> CUfunction:
        """The kernel's handle; the device is current when it is first asked for."""
        if self._function is None:
            function = get_combine_kernel(self._dtype, self._target).function
            driver.ready_kernel(function, self._device_index, 0)
            self._function = function
        return self._function

    def new_parts(self, args: ForwardKernelArgs) -> Tensor:
        """Memory of the current stream for the parts; its addresses go into `args`."""
        device = torch.device("cuda", self._device_index)
        parts = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        args.o_parts = address = parts.data_ptr()
        args.lse_parts = address + self._output_bytes
        return parts

    def launch(self, args: ForwardKernelArgs, stream: int) -> None:
        """Queue the kernel behind the one that stored the parts."""
        driver.launch_kernel(self.load(), self._shape, (args,), stream, self._device_index)
