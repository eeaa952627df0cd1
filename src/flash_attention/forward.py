# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from flash_attention.call.call import Keywords, call_of, with_keywords
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig, check_config_type
from flash_attention.launch.device import CPU
from flash_attention.launch.plan import fill_idle, plan_for

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


@with_keywords
def forward(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    **keywords: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention`, computed by the kernel that `kernel_cfg` describes.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel.

    A config takes any d_head up to its own. `attention` tells what the keywords mean. Some are for
    some configs only: a HopperForwardKernelConfig reads pages and splits keys, and one that would
    have to ignore a field is refused.

    With CPU tensors the same kernel runs on the emulator, with every check on; a finding raises
    LaunchError. `emulate` returns findings and counters instead.
    """
    call = call_of("forward", q, k, v, o, keywords)
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    return plan_for(call, kernel_cfg).run(call)


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


@with_keywords
def forward_timed(
    kernel_cfg: KernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, float] | tuple[Tensor, Tensor, float]:
    """`forward`, and the milliseconds that the kernel took on its stream. Waits for the kernel."""
    check_config_type(kernel_cfg)
    call = call_of("forward_timed", q, k, v, o, keywords)
    plan = plan_for(call, kernel_cfg)
    if plan.device_index == CPU:
        raise UnsupportedError(
            "q, k and v are on cpu, where the kernel is emulated: there is no kernel time to tell;"
            ' pass CUDA tensors, q.to("cuda"), or call forward or emulate'
        )
    arguments, out, lse = plan.prepare(call)
    with torch.cuda.device(plan.device_index):
        stream = torch.cuda.current_stream()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record(stream)
        if plan.idle:
            fill_idle(out, lse, call.sinks)
        else:
            plan.launcher.launch(arguments)
        end.record(stream)
    end.synchronize()
    milliseconds = start.elapsed_time(end)
    return (out, milliseconds) if lse is None else (out, lse, milliseconds)
