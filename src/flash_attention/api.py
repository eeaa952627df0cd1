# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.emulation import emulate_checked
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.launch import CPU, LaunchPlan, plan_for


def forward(
    kernel_cfg: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d_head)) v, computed by the kernel that `kernel_cfg` describes.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel.

    With CPU tensors the same kernel runs on the emulator, with every check on; a finding raises
    LaunchError. `emulate` returns findings and counters instead.
    """
    plan = plan_for(kernel_cfg, q, k, v, o)
    if plan.device_index == CPU:
        return emulate_checked(plan, q, k, v, o)
    args, out = _prepare(plan, q, k, v, o)
    plan.launch(args)
    return out


def forward_timed(
    kernel_cfg: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None = None
) -> tuple[Tensor, float]:
    """`forward`, and the milliseconds that the kernel took on its stream. Waits for the kernel."""
    plan = plan_for(kernel_cfg, q, k, v, o)
    if plan.device_index == CPU:
        raise UnsupportedError(
            "q, k and v are on cpu, where the kernel is emulated: there is no kernel time to tell;"
            ' pass CUDA tensors, q.to("cuda"), or call forward or emulate'
        )
    args, out = _prepare(plan, q, k, v, o)
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
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None
) -> tuple[ForwardKernelArgs, Tensor]:
    """Check this call's tensors, compile if need be, allocate or claim the output."""
    args = plan.bind(q, k, v, o)
    plan.load()
    if o is None:
        o = torch.empty_like(q)
        args.o = o.data_ptr()
    elif not o.is_inference():
        increment_version(o)
    return args, o
