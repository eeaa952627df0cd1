# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.launch import LaunchPlan, plan_for


def forward(
    kernel_cfg: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d_head)) v, computed by the kernel that `kernel_cfg` describes.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel.
    """
    plan, args, out = _prepare(kernel_cfg, q, k, v, o)
    plan.launch(args)
    return out


def forward_timed(
    kernel_cfg: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None = None
) -> tuple[Tensor, float]:
    """`forward`, and the milliseconds that the kernel took on its stream. Waits for the kernel."""
    plan, args, out = _prepare(kernel_cfg, q, k, v, o)
    with torch.cuda.device(plan.device_index):
        stream = torch.cuda.current_stream()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record(stream)
        plan.launch(args)
        end.record(stream)
    end.synchronize()
    return out, start.elapsed_time(end)


def _prepare(
    kernel_cfg: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None
) -> tuple[LaunchPlan, ForwardKernelArgs, Tensor]:
    """Check everything, compile if need be, allocate or claim the output."""
    plan = plan_for(kernel_cfg, q, k, v, o)
    args = plan.bind(q, k, v, o)
    plan.load()
    if o is None:
        o = torch.empty_like(q)
        args.o = o.data_ptr()
    elif not o.is_inference():
        increment_version(o)
    return plan, args, o
