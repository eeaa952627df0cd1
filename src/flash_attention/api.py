# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.emulation import emulate_checked
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch import CPU, LaunchPlan, plan_for


@overload
def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale q k^T) v, computed by the kernel that `kernel_cfg` describes.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel. The scale is 1 / sqrt(d_head) unless given.

    Of a HopperForwardKernelConfig, k and v may have another length than q, and fewer heads if
    q's are a multiple: neighbouring heads of q share one. With `causal`, query i sees the keys
    j <= i + seq_k - seq_q. With `return_lse` the result is (o, lse), where lse is the natural
    logarithm of the sum of exponentials of every row, float32 (batch, heads, seq_q). A query that
    sees no key has o = 0 and lse = -inf.

    With CPU tensors the same kernel runs on the emulator, with every check on; a finding raises
    LaunchError. `emulate` returns findings and counters instead.
    """
    plan = plan_for(
        *(kernel_cfg, q, k, v, o),
        causal=causal,
        softmax_scale=softmax_scale,
        return_lse=return_lse,
    )
    if plan.device_index == CPU and not plan.problem.idle:
        out, lse = emulate_checked(plan, q, k, v, o)
    else:
        args, out, lse = _prepare(plan, q, k, v, o)
        _compute(plan, args, out, lse)
    return out if lse is None else (out, lse)


@overload
def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[False] = False,
) -> tuple[Tensor, float]: ...


@overload
def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor, float]: ...


def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, float] | tuple[Tensor, Tensor, float]:
    """`forward`, and the milliseconds that the kernel took on its stream. Waits for the kernel."""
    plan = plan_for(
        *(kernel_cfg, q, k, v, o),
        causal=causal,
        softmax_scale=softmax_scale,
        return_lse=return_lse,
    )
    if plan.device_index == CPU:
        raise UnsupportedError(
            "q, k and v are on cpu, where the kernel is emulated: there is no kernel time to tell;"
            ' pass CUDA tensors, q.to("cuda"), or call forward or emulate'
        )
    args, out, lse = _prepare(plan, q, k, v, o)
    with torch.cuda.device(plan.device_index):
        stream = torch.cuda.current_stream()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record(stream)
        _compute(plan, args, out, lse)
        end.record(stream)
    end.synchronize()
    milliseconds = start.elapsed_time(end)
    return (out, milliseconds) if lse is None else (out, lse, milliseconds)


def _prepare(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None
) -> tuple[ForwardKernelArgs, Tensor, Tensor | None]:
    """Check this call's tensors, compile if need be, allocate or claim the output and the lse."""
    args = plan.bind(q, k, v, o)
    if not plan.problem.idle:
        plan.load()
    if o is None:
        o = torch.empty_like(q)
        args.o = o.data_ptr()
    elif not o.is_inference():
        increment_version(o)
    lse = None
    if plan.return_lse:
        lse = torch.empty(plan.lse_shape, dtype=torch.float32, device=q.device)
        args.lse = lse.data_ptr()
    return args, o, lse


def _compute(plan: LaunchPlan, args: ForwardKernelArgs, o: Tensor, lse: Tensor | None) -> None:
    """Launch the kernel; without a query or a key there is nothing to launch."""
    if not plan.problem.idle:
        return plan.launch(args)
    with torch.inference_mode(o.is_inference()):
        o.zero_()
    if lse is not None:
        lse.fill_(-math.inf)
