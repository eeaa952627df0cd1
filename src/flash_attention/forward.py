# SPDX-License-Identifier: Apache-2.0
"""The forward pass as a function of a kernel config and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from flash_attention.call.call import Keywords, call_of, with_keywords
from flash_attention.families.given import GivenConfig
from flash_attention.families.registry import check_config_type
from flash_attention.launch.plans import known_plan, plan_for
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
    return_max: Literal[False] = False,
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
    return_max: Literal[False] = False,
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
    benchmark: Literal[False] = False,
    return_lse: bool = False,
    return_max: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, ...]: ...


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
    return_max: bool = False,
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
    """Compute `attention` with the kernel that `kernel_cfg` describes.

    The first call with a config compiles its kernel. On a GPU the call is asynchronous on the
    current stream of q's device. On CPU tensors the emulator runs the same kernel with all checks,
    and a finding raises LaunchError; `emulate` returns findings and counters instead.

    - `kernel_cfg`: a config, its short form, a rung such as "rung:5", or an object with the
      thirteen fields of a FlashForwardKernelConfig.
    - `q`, `k`, `v`: fp16, bf16 or e4m3 tensors as in `attention`, on one device. The rows of d_head
      elements must be contiguous and 16-byte aligned, and d_head at most that of the config.
    - `o`: a tensor for the result.
    - `benchmark`: time the kernel, as `forward_timed` does.
    - The other keywords: as in `attention`. Only Hopper configs support split-KV. A
      config with a field that would have no effect is refused.

    Returns `o` or a new tensor like q with the columns of v. With `return_lse` it returns (out,
    lse), and with `return_max` the maxima follow. With `benchmark` the milliseconds come last.

    Raises KernelConfigError for an invalid config, UnsupportedError for arguments that the config
    does not support, and CompileError or LaunchError if the kernel cannot be compiled or launched.
    """
    if benchmark:
        return forward_timed(kernel_cfg, q, k, v, o, **keywords)
    call = call_of("forward", q, k, v, o, keywords)
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    plan = known_plan(call, kernel_cfg) or plan_for(call, kernel_cfg)
    return plan.run(call)


@with_keywords
def forward_timed(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    **keywords: Any,
) -> tuple[Any, ...]:
    """Compute `forward`, and measure the milliseconds that the kernel takes on its stream.

    The arguments are those of `forward`. The kernel runs twice, the first time untimed, and the
    call waits for it. Returns (out, milliseconds), or (out, lse, milliseconds) with `return_lse`.
    Raises what `forward` raises, and UnsupportedError for CPU tensors.
    """
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    call = call_of("forward_timed", q, k, v, o, keywords)
    result, milliseconds = run_timed(plan_for(call, kernel_cfg), call)
    return (result, milliseconds) if isinstance(result, Tensor) else (*result, milliseconds)
