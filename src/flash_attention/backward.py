# SPDX-License-Identifier: Apache-2.0
"""The backward pass as a function of a kernel config and tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Gradients, Wanted
from flash_attention.call.call import BACKWARD_KEYWORDS, call_of, check_keywords, with_keywords_in
from flash_attention.call.options import check_switch
from flash_attention.call.tensors import check_no_grad
from flash_attention.errors import UnsupportedError, quoted
from flash_attention.families.given import GivenConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import check_config_type
from flash_attention.launch.plans import plan_for
from flash_attention.launch.timed import run_timed


@with_keywords_in(BACKWARD_KEYWORDS)
def backward(
    kernel_cfg: GivenConfig,
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    dlse: Tensor | None = None,
    wanted: Iterable[str] | None = None,
    deterministic: bool = False,
    **keywords: Any,
) -> Gradients:
    """Compute the gradients of `attention` with the kernel that `kernel_cfg` describes.

    `attention` itself is differentiable and calls this pass where autograd needs it. The first call
    with a config compiles its kernels. On a GPU the call is asynchronous on the current stream of
    q's device. On CPU tensors the emulator runs the same kernels with all checks, and a finding
    raises LaunchError.

    - `kernel_cfg`: a config of the backward pass, its short form, or a rung.
    - `do`: the gradient of the output, with its shape and dtype. The rows of d_v elements must be
      contiguous and 16-byte aligned.
    - `q`, `k`, `v`: the tensors of the forward pass.
    - `o`, `lse`: its results; `attention` and `forward` return lse with `return_lse`. If they are
      those of several parts of the keys together, the gradients are those of one part.
    - `dlse`: the gradient of lse, float32 with its shape. None means zero.
    - `wanted`: which gradients to compute, of "dq", "dk", "dv" and "dsinks". By default all, and
      that of the sinks if there are any.
    - `deterministic`: give the same bits in every run. torch.use_deterministic_algorithms asks for
      that too.
    - The other keywords: those of the forward pass, as in `attention`.

    Returns Gradients(dq, dk, dv, dsinks), where gradients that are not wanted are None. A gradient
    has the dtype of its tensor.

    Raises KernelConfigError for an invalid config or one of the forward pass, UnsupportedError for
    arguments that the config does not support, and CompileError or LaunchError if a kernel cannot
    be compiled or launched.
    """
    given = (do, q, k, v, o, lse)
    call = _call("backward", kernel_cfg, given, dlse, wanted, deterministic, keywords)
    return plan_for(call, kernel_cfg).run(call)


@with_keywords_in(BACKWARD_KEYWORDS)
def backward_timed(
    kernel_cfg: GivenConfig,
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    dlse: Tensor | None = None,
    wanted: Iterable[str] | None = None,
    deterministic: bool = False,
    **keywords: Any,
) -> tuple[Gradients, float]:
    """Compute `backward`, and measure the milliseconds that its kernels take on their stream.

    The arguments are those of `backward`. The kernels run twice, the first time untimed, and the
    call waits for them. Returns (gradients, milliseconds). Raises what `backward` raises, and
    UnsupportedError for CPU tensors.
    """
    given = (do, q, k, v, o, lse)
    call = _call("backward_timed", kernel_cfg, given, dlse, wanted, deterministic, keywords)
    return run_timed(plan_for(call, kernel_cfg), call)


def _call(
    function: str,
    kernel_cfg: GivenConfig,
    given: tuple[Tensor, ...],
    dlse: Tensor | None,
    wanted: Iterable[str] | None,
    deterministic: bool,
    keywords: dict[str, Any],
) -> BackwardCall:
    if kernel_cfg is None:
        check_config_type(kernel_cfg, Pass.BACKWARD)
    check_keywords(function, keywords, BACKWARD_KEYWORDS)
    check_switch("deterministic", deterministic)
    do, q, k, v, o, lse = given
    call = call_of(function, q, k, v, o, keywords)
    check_no_grad(call, do, lse, dlse)
    asked = Wanted(dsinks=call.sinks is not None) if wanted is None else _named(wanted)
    everywhere = torch.are_deterministic_algorithms_enabled()
    return BackwardCall(do, call, lse, dlse, asked, bool(deterministic) or everywhere)


def _named(wanted: Iterable[str]) -> Wanted:
    names = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else [*wanted]
    for name in names:
        if not isinstance(name, str) or name not in Wanted._fields:
            raise UnsupportedError(
                f"wanted has {quoted(name)}; allowed are the names {', '.join(Wanted._fields)}, one"
                " of them or several in a tuple"
            )
    return Wanted(*(name in names for name in Wanted._fields))
