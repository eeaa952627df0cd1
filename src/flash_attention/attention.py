# SPDX-License-Identifier: Apache-2.0
"""attention: the one function for all shapes, masks and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flash_attention import ops
from flash_attention.autograd import (
    check_trained,
    compute_recorded,
    compute_traced,
    run_recorded,
)
from flash_attention.call.built_in import with_built_in_mask
from flash_attention.call.call import Call, Keywords, call_of, check_keywords, with_keywords
from flash_attention.call.dropout import draw_rng_state
from flash_attention.call.function import Function
from flash_attention.call.options import check_dropout_p, check_options, check_switch
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.padding import naming_padding, needs_padding, padded
from flash_attention.launch.compute import check_computable, compute
from flash_attention.launch.plans import known_plan
from flash_attention.launch.preparation import Outputs
from flash_attention.ops import NO_BACKWARD_OPTIONS, BackwardOptions
from flash_attention.program.trace import MaskFunction, ScoreFunction
from flash_attention.program.uncompiled import uncompiled
from flash_attention.tangents import compute_in_forward_mode

if TYPE_CHECKING:
    from typing_extensions import Unpack

_records = torch.is_grad_enabled
_any_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = False,
    return_max: Literal[False] = False,
    out: Tensor | None = None,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    config: GivenConfig | None = None,
    backward_config: GivenConfig | None = None,
    deterministic: bool = False,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    return_max: Literal[False] = False,
    out: Tensor | None = None,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    config: GivenConfig | None = None,
    backward_config: GivenConfig | None = None,
    deterministic: bool = False,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    return_max: Literal[True],
    out: Tensor | None = None,
    config: GivenConfig | None = None,
    backward_config: GivenConfig | None = None,
    deterministic: bool = False,
    validate: bool = False,
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, ...]: ...


@with_keywords
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    config: GivenConfig | None = None,
    backward_config: GivenConfig | None = None,
    deterministic: bool = False,
    validate: bool = False,
    **keywords: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Compute softmax(softmax_scale q k^T) v, differentiable in q, k, v, sinks and learned biases.

    - `q`, `k`, `v`: (batch, seq_q, heads, d), (batch, seq_k, heads_k, d) and (batch, seq_k,
      heads_k, d_v). heads is a multiple of heads_k; neighbouring heads of q share one of k and v.
      If d or d_v is no multiple of 8 (16 if v has 8 bits), padded copies are used.
    - `causal`: query i sees the keys up to i + seq_k - seq_q. `window` (left, right): from left
      keys before that one to right after it, both included; None and -1 mean no limit.
    - `softmax_scale`: by default 1 / sqrt(d). `softcap`: score s becomes softcap tanh(s / softcap).
    - `score`: f(score, batch, head, query, key), the new score. `mask`: g(batch, head, query, key),
      whether the query sees the key. `function`: a `Function` of both, which spares their tracing.
    - `dropout_p`: drop weights at random. `rng_state`: the seed and offset of `dropout_mask`.
    - `sinks`: float32 (heads,), a logit per head that is added to the softmax denominator only.
    - `cu_seqlens_q`, `cu_seqlens_k`: int32 (batch + 1,), the first row of each packed sequence, and
      the end of the last; tensors are (total, heads, d). `max_seqlen_q`, `max_seqlen_k`: the
      longest sequence; of pages, the most keys if known. `seqused_k`: int32 (batch,), used keys.
    - `block_table`: int32 (batch, n), pages in order; k, v are (pages, page_size, heads_k, d).
    - `q_descale`, `k_descale`, `v_descale`: float32 (batch, heads_k), (1,), or of k and v (batch,
      heads_k, n) for every 128 keys: the factors of float8_e4m3fn (on Hopper, not differentiable).
      q may have 16 bits and none. The output is bfloat16 or as q. v.stride(1) may be 1 with 8 bits.
    - `validate`: check values of lengths, pages, factors and a function's reads, and wait for them.
    - `split_keys`: the keys of a KV split. `batch_invariant`: a row's bits depend on no other row.
    - `config`, `backward_config`: as in `forward`, `backward`. Without, torch computes on the CPU.
    - `deterministic`: gradients have the same bits in every run, as outputs always have.

    Returns `out` or a new tensor; with `return_lse` the log-sum-exp of rows too, float32 (batch,
    heads, seq_q) or (heads, total); with `return_max` the largest score of heads before softcap,
    float32. A query without keys has output 0, lse -inf or its sink. Raises what `forward` raises.
    """
    if score is not None or mask is not None:
        keywords = with_function(score, mask, keywords)
    try:
        call = Call(q, k, v, out, **keywords)
    except TypeError:
        check_keywords("attention", keywords)
        raise
    plain = deterministic is False and backward_config is None
    backward = NO_BACKWARD_OPTIONS if plain else BackwardOptions.of(backward_config, deterministic)
    if call.function is not None or type(call.dropout_p) is not float or call.dropout_p:
        call = _settled(call, config, validate)
    if not (ops.is_traced(q, k, v) or _any_transforms() or forward_ad._current_level >= 0):
        if _records() and call.needs_grad():
            if (found := run_recorded(call, config, validate, backward)) is not None:
                return found
        elif (plan := known_plan(call, config)) is not None:
            return plan.run(call, validate)
    return _attention_slow_path(call, config, validate, backward)


def with_function(
    score: ScoreFunction | None, mask: MaskFunction | None, keywords: dict[str, Any]
) -> dict[str, Any]:
    """Return the keywords of a call with a function of these."""
    if keywords.get("function") is not None:
        raise UnsupportedError("function is given beside score or mask; leave one of them out")
    return {**keywords, "function": Function(score, mask)}


def _settled(call: Call, config: GivenConfig | None, validate: bool) -> Call:
    """Return the call that is computed: with a built-in mask in place of a function that describes
    it, and with a state of its random numbers."""
    call = with_built_in_mask(call)
    if type(call.dropout_p) is not float or call.dropout_p:
        return with_rng_state(call, config, validate)
    return call


def with_rng_state(call: Call, config: GivenConfig | None = None, validate: bool = False) -> Call:
    """Return a call that has a state of its random numbers, its own or a new one, if it has
    dropout. A new one is drawn if nothing else about the call is refused, as far as that is known
    while torch traces it."""
    if call.rng_state is not None or not isinstance(call.q, Tensor):
        return call
    if not torch.compiler.is_compiling():  # which does not follow the checks
        check_dropout_p(call.dropout_p)
        if call.dropout_p:
            _check_before_drawing(call, config, validate)
    if not call.dropout_p:
        return call
    return call._replace(rng_state=draw_rng_state(call.q.device))


def _check_before_drawing(call: Call, config: GivenConfig | None, validate: bool) -> None:
    q, k, v = call[:3]
    call = call._replace(rng_state=torch.empty(2, dtype=torch.int64, device=q.device))
    if call.window is not None:
        call = call.with_whole_window()
    if ops.is_traced(q, k, v) or _any_transforms() or not (q.is_cpu or q.is_cuda):
        return check_options(call)
    if _records() and call.needs_grad():
        check_differentiable(call)
        check_trained(call)
        call = call.with_lse()
    with naming_padding(call):
        check_computable(padded(call) if needs_padding(q, v) else call, config, validate)


def _attention_slow_path(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs:
    """Run a call that no plan is known of, or that torch traces, transforms or records."""
    function = call.function
    compiling = torch.compiler.is_dynamo_compiling()
    if function is not None and compiling and _records() and function.needs_grad():
        found: Outputs = uncompiled(_attention_slow_path, call, config, validate, backward)
        return found
    if call.window is not None:
        call = call.with_whole_window()
    q, k, v = call[:3]
    is_traced = ops.is_traced(q, k, v)
    if needs_padding(q, v):
        return _padded_attention(call, config, validate, backward)
    if not compiling and forward_ad._current_level >= 0:
        in_forward_mode = compute_in_forward_mode(call, config, validate, backward)
        if in_forward_mode is not None:
            return in_forward_mode
    if is_traced:
        return compute_traced(call, config, validate, backward)
    if _records() and call.needs_grad():
        return compute_recorded(call, config, validate, backward)
    try:
        return compute(call, config, validate)
    except (RuntimeError, UnsupportedError):
        if not ops.lacks_memory(q, k, v):
            raise
    return ops.traced(call, config, validate, backward)


def _padded_attention(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs:
    wide = padded(call)
    attend: Callable[..., Any] = attention
    with naming_padding(call):
        result = attend(
            *wide[:3],
            config=config,
            backward_config=backward.config,
            deterministic=backward.deterministic,
            validate=validate,
            return_lse=call.return_lse,
            return_max=call.return_max,
            **wide.keywords(),
        )
    out, *others = (result,) if isinstance(result, Tensor) else result
    out = out[..., : call.v.shape[-1]]
    if call.out is not None:
        out = call.out.copy_(out)
    return (out, *others) if others else out


Arguments = tuple[Call, GivenConfig | None, bool, BackwardOptions]
"""The call, its config, whether it is validated, and the options of its backward pass."""


def read_arguments(
    function: str, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]
) -> Arguments:
    """Read the arguments of a function that takes the same ones as `attention`."""
    own = dict(keywords)
    out, config = own.pop("out", None), own.pop("config", None)
    score, mask = own.pop("score", None), own.pop("mask", None)
    if score is not None or mask is not None:
        own = with_function(score, mask, own)
    validate = own.pop("validate", False)
    check_switch("validate", validate)
    backward = BackwardOptions.of(own.pop("backward_config", None), own.pop("deterministic", False))
    call = _settled(call_of(function, q, k, v, out, own), config, bool(validate))
    return call, config, bool(validate), backward
