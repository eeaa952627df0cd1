# SPDX-License-Identifier: Apache-2.0
"""The second launch of a call with keys in chunks: parts become rows of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flash_attention.call.problem import Problem
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.families.sm90.forward.splits import COMBINE_THREADS, FLOAT_BYTES, Chunks
from flash_attention.kernel_configs import HopperForwardKernelConfig
from flash_attention.launch import driver
from flash_attention.launch.kernels import CombineKernel, get_combine_kernel

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction


class Combine:
    """The kernel that combines parts on a CUDA device, and the memory they take on the way."""

    def __init__(
        self,
        chunks: Chunks,
        problem: Problem,
        config: HopperForwardKernelConfig,
        target: str,
        device_index: int,
    ) -> None:
        self._config = config
        self._chunks = chunks
        self._target = target
        self._device_index = device_index
        rows = chunks.num_part_rows(problem, config.consumers)
        self.output_bytes = rows * problem.d_v * FLOAT_BYTES
        self.lse_bytes = rows * FLOAT_BYTES
        self.grid = (chunks.combine_grid(problem), 1, 1)
        self._launch = driver.DependentLaunch((*self.grid, COMBINE_THREADS, 1, 1, 0))
        self._function: CUfunction | None = None

    def kernel(self) -> CombineKernel:
        """The kernel, compiled at first use."""
        return get_combine_kernel(self._config, self._chunks, self._target)

    def load(self) -> CUfunction:
        """The kernel's handle; the device is current when it is first asked for."""
        if self._function is None:
            function = self.kernel().function
            driver.ready_kernel(function, self._device_index, 0)
            self._function = function
        return self._function

    def new_parts(self, args: ForwardKernelArgs) -> Tensor:
        """Memory of the current stream for the parts; its addresses go into `args`."""
        device = torch.device("cuda", self._device_index)
        parts = torch.empty(self.output_bytes + self.lse_bytes, dtype=torch.uint8, device=device)
        args.o_parts = address = parts.data_ptr()
        args.lse_parts = address + self.output_bytes
        return parts

    def launch(self, args: ForwardKernelArgs, stream: int) -> None:
        """Queue the kernel behind the one that stores the parts; its CTAs may be there early."""
        self._launch(self.load(), (args,), stream)
