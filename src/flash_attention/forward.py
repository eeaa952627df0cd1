# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.call.call import Extras, Keywords, Window, extras_of, options_of
from flash_attention.choose.decision import new_output
from flash_attention.errors import UnsupportedError
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.emulation import emulate_checked
from flash_attention.launch.plan import CPU, LaunchPlan, fill_keyless, plan_for

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...


@overload
def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention`, computed by the kernel that `kernel_cfg` describes.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel.

    A config takes any d_head up to its own. `attention` tells what the arguments mean; pages and
    keys in chunks are for a HopperForwardKernelConfig.

    With CPU tensors the same kernel runs on the emulator, with every check on; a finding raises
    LaunchError. `emulate` returns findings and counters instead.
    """
    options = options_of(
        (causal, window, softmax_scale, softcap, return_lse, max_seqlen_q, max_seqlen_k, split_keys)
    )
    extras = extras_of(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    plan = plan_for(kernel_cfg, q, k, v, o, options=options, extras=extras)
    return run_plan(plan, q, k, v, o, extras)


def run_plan(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None, extras: Extras
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute what the plan is for, on the GPU or on the emulator."""
    if plan.device_index == CPU and not plan.idle:
        out, lse = emulate_checked(plan, q, k, v, o, extras)
    else:
        args, out, lse = _prepare(plan, q, k, v, o, extras)
        _compute(plan, args, out, lse, extras)
    return out if lse is None else (out, lse)


@overload
def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, float]: ...


@overload
def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor, float]: ...


def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, float] | tuple[Tensor, Tensor, float]:
    """`forward`, and the milliseconds that the kernel took on its stream. Waits for the kernel."""
    options = options_of(
        (causal, window, softmax_scale, softcap, return_lse, max_seqlen_q, max_seqlen_k, split_keys)
    )
    extras = extras_of(sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    plan = plan_for(kernel_cfg, q, k, v, o, options=options, extras=extras)
    if plan.device_index == CPU:
        raise UnsupportedError(
            "q, k and v are on cpu, where the kernel is emulated: there is no kernel time to tell;"
            ' pass CUDA tensors, q.to("cuda"), or call forward or emulate'
        )
    args, out, lse = _prepare(plan, q, k, v, o, extras)
    with torch.cuda.device(plan.device_index):
        stream = torch.cuda.current_stream()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record(stream)
        _compute(plan, args, out, lse, extras)
        end.record(stream)
    end.synchronize()
    milliseconds = start.elapsed_time(end)
    return (out, milliseconds) if lse is None else (out, lse, milliseconds)


def _prepare(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None, extras: Extras
) -> tuple[ForwardKernelArgs, Tensor, Tensor | None]:
    """Check this call's tensors, compile if need be, allocate or claim the output and the lse."""
    args = plan.bind(q, k, v, o, extras=extras)
    if not plan.idle:
        plan.load()
    if o is None:
        o = torch.empty_like(q) if plan.like_q else new_output(q, plan.problem.d_v)
        args.o = o.data_ptr()
    elif not o.is_inference():
        increment_version(o)
    lse = None
    if plan.return_lse:
        lse = torch.empty(plan.problem.lse_shape, dtype=torch.float32, device=q.device)
        args.lse = lse.data_ptr()
    return args, o, lse


def _compute(
    plan: LaunchPlan, args: ForwardKernelArgs, o: Tensor, lse: Tensor | None, extras: Extras
) -> None:
    """Launch the kernel; without a query or a key there is nothing to launch."""
    if not plan.idle:
        return plan.launch(args)
    with torch.inference_mode(o.is_inference()):
        o.zero_()
    if lse is not None:
        fill_keyless(lse, extras.sinks)
