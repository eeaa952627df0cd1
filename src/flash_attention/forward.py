# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from flash_attention.call.call import Keywords, call_of, with_keywords
from flash_attention.families.config import check_config_type
from flash_attention.families.given import GivenConfig
from flash_attention.launch.plan import plan_for
from flash_attention.launch.timed import run_timed

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def forward(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    benchmark: Literal[False] = False,
    return_lse: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...


@overload
def forward(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    benchmark: Literal[False] = False,
    return_lse: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


@overload
def forward(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    benchmark: Literal[True],
    return_lse: bool = False,
    **keywords: Unpack[Keywords],
) -> tuple[Any, ...]: ...


@with_keywords
def forward(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    benchmark: bool = False,
    **keywords: Any,
) -> Tensor | tuple[Any, ...]:
    """`attention`, computed by the kernel that `kernel_cfg` describes.

    `kernel_cfg` is a config, its short form, a rung of the ladder as in "rung:5", or an object with
    the thirteen fields of a FlashForwardKernelConfig.

    The tensors are (batch, seq, heads, d_head), fp16 or bf16, on one CUDA device, with any strides
    that keep rows of d_head contiguous and 16-byte aligned. The call is asynchronous on the
    current stream of q's device. The result is stored in `o` if given, else in a new tensor like
    q. The first call with a config compiles its kernel.

    A config takes any d_head up to its own. `attention` tells what the keywords mean. Some are for
    some configs only: a HopperForwardKernelConfig reads pages and splits keys, and one that would
    have to ignore a field is refused.

    With `return_lse` the result is (out, lse). With `benchmark` the milliseconds that the kernel
    took on its stream come last, as of `forward_timed`.

    With CPU tensors the same kernel runs on the emulator, with every check on; a finding raises
    LaunchError. `emulate` returns findings and counters instead.
    """
    if benchmark:
        return forward_timed(kernel_cfg, q, k, v, o, **keywords)
    call = call_of("forward", q, k, v, o, keywords)
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    return plan_for(call, kernel_cfg).run(call)


@with_keywords
def forward_timed(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    **keywords: Any,
) -> tuple[Any, ...]:
    """(out, ms), or (out, lse, ms) with `return_lse`: `forward`, and the milliseconds that the
    kernel took on its stream. It runs twice, the first time untimed. Waits for the kernel.
    """
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    call = call_of("forward_timed", q, k, v, o, keywords)
    out, lse, milliseconds = run_timed(plan_for(call, kernel_cfg), call)
    return (out, milliseconds) if lse is None else (out, lse, milliseconds)
