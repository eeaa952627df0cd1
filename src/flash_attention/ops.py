# SPDX-License-Identifier: Apache-2.0
"""`attention` as operators of torch, so that torch.compile and torch.export see one node.

`torch.ops.flash_attention.dense` takes (batch, seq, heads, d) tensors,
`torch.ops.flash_attention.varlen` packed ones. Both return (out, lse) in new, contiguous tensors
and change nothing. A side of the window that is -1 has no limit. `config` is the short form of a
kernel config, a rung as in "rung:5", or None to have one selected.

`attention` calls them while it is traced (by torch.compile, torch.export, make_fx or
torch.jit.trace), while a dispatch mode of torch such as FlopCounterMode is active, and for tensors
without memory: fake tensors, meta tensors and those in transforms of torch.func. Other calls avoid
the overhead of an operator.

FLOP are counted as torch counts them for scaled_dot_product_attention: two products of all queries
with all keys, whatever the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from flash_attention.call.call import Call, check_keywords, whole_window
from flash_attention.call.checks import check_call, check_dense
from flash_attention.call.lengths import check_lengths
from flash_attention.call.options import SIZES, check_options, check_switch
from flash_attention.call.tensors import (
    MAX_ROWS,
    OUTPUT,
    TensorView,
    check_no_grad,
    check_output_kind,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.launch.compute import compute

PACKED = {
    "cu_seqlens_q": "Tensor? cu_seqlens_q",
    "cu_seqlens_k": "Tensor? cu_seqlens_k",
    "max_seqlen_q": "int? max_seqlen_q",
    "max_seqlen_k": "int? max_seqlen_k",
}
"""The arguments of packed sequences, in the schema of an operator."""
ASKED = {
    "sinks": "Tensor? sinks=None",
    "seqused_k": "Tensor? seqused_k=None",
    "causal": "bool causal=False",
    "window_left": "int window_left=-1",
    "window_right": "int window_right=-1",
    "softmax_scale": "float? softmax_scale=None",
    "softcap": "float softcap=0.0",
    "config": "str? config=None",
    "block_table": "Tensor? block_table=None",
    "split_keys": "int? split_keys=None",
}
"""The arguments of both operators, in their schema."""


def _operator(name: str, declared: dict[str, str]) -> CustomOpDef:
    """Make an operator that computes `attention` of q, k, v and the declared arguments."""

    def run(q: Tensor, k: Tensor, v: Tensor, *values: Any, **named: Any) -> tuple[Tensor, Tensor]:
        # torch does not pass arguments that have their default value.
        return _compute(q, k, v, dict(zip(declared, values, strict=False)) | named)

    schema = f"(Tensor q, Tensor k, Tensor v, {', '.join(declared.values())}) -> (Tensor, Tensor)"
    operator = torch.library.custom_op(name, run, mutates_args=(), schema=schema)
    operator.register_fake(_without_values)
    return operator


def _compute(q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any]) -> tuple[Tensor, Tensor]:
    config = asked.pop("config", None)
    window = (asked.pop("window_left", -1), asked.pop("window_right", -1))
    call = Call(q, k, v, _room(q, v), **asked, window=window, return_lse=True)
    result, lse = compute(call, config)
    return result, lse


def _without_values(
    q: Tensor, k: Tensor, v: Tensor, *asked: object, **named: object
) -> tuple[Tensor, Tensor]:
    """Allocate results without values, for tracing."""
    *batch, rows, heads, _ = q.shape
    return _room(q, v), q.new_empty((*batch, heads, rows), dtype=torch.float32)


def _room(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


dense = _operator("flash_attention::dense", ASKED)
varlen = _operator("flash_attention::varlen", PACKED | ASKED)


@register_flop_formula([torch.ops.flash_attention.dense], get_raw=True)
def _dense_flop(q: Tensor, k: Tensor, v: Tensor, *values: Any, **named: Any) -> int:
    return _flop(q, k, v, dict(zip(ASKED, values, strict=False)) | named)


@register_flop_formula([torch.ops.flash_attention.varlen], get_raw=True)
def _varlen_flop(q: Tensor, k: Tensor, v: Tensor, *values: Any, **named: Any) -> int:
    return _flop(q, k, v, dict(zip(PACKED | ASKED, values, strict=False)) | named)


def _flop(q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any]) -> int:
    """Count the FLOP of S = Q K^T and O = P V. Reading the lengths waits for their device. If they
    have no values, every sequence counts as the longest."""
    starts_q, starts_k, used, table = (
        asked.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table")
    )
    batch = q.shape[0] if starts_q is None else starts_q.shape[0] - 1
    longest_q = q.shape[-3] if starts_q is None else asked["max_seqlen_q"]
    longest_k = k.shape[-3] if starts_k is None else asked["max_seqlen_k"]
    if table is not None:
        longest_k *= table.shape[1]
    queries = _values(starts_q, [longest_q] * batch, starts=True)
    keys = _values(starts_k, [longest_k] * batch, starts=True)
    keys = _values(used, keys, starts=False)
    pairs = sum(a * b for a, b in zip(queries, keys, strict=True))
    return int(2 * pairs * q.shape[-2] * (q.shape[-1] + v.shape[-1]))


def _values(numbers: Tensor | None, otherwise: list[int], *, starts: bool) -> list[int]:
    if numbers is None or isinstance(numbers, FakeTensor) or numbers.is_meta:
        return otherwise
    lengths: list[int] = (numbers.diff() if starts else numbers).tolist()
    return lengths


_is_compiling = torch.compiler.is_compiling
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_tracing: Callable[[], bool] = torch._C._is_tracing


def is_traced(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has to see a call as an operator. This runs in every call."""
    if _is_compiling() or _modes() or _is_tracing():
        return True
    return not (type(q) is type(k) is type(v) is Tensor) and _any_fake(q, k, v)


def lacks_memory(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tensors have no memory that a kernel could access."""
    if torch._C._functorch.peek_interpreter_stack() is not None or _any_fake(q, k, v):
        return True
    return all(getattr(t, "is_meta", False) for t in (q, k, v))


def _any_fake(*tensors: Tensor) -> bool:
    return any(isinstance(t, FakeTensor) for t in tensors)


def traced(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    config: GivenConfig | None,
    validate: bool,
    keywords: dict[str, Any],
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute `attention` by calling an operator, which torch can trace."""
    check_keywords("attention", keywords)
    call = Call(q, k, v, out, **keywords)
    call = call._replace(window=whole_window(call.window))
    if not _is_compiling():  # torch.compile does not follow these
        check_options(call)
        check_switch("validate", validate)
    for name, tensor in zip("qkv", call[:3], strict=True):
        check_dense(name, tensor)
    for name, tensor in call.extras.items():
        check_dense(name, tensor, (SIZES[name],))
    if validate:
        _validate(call, config)
    if out is not None:
        check_dense(OUTPUT, out)
        check_output_kind(*(_shape_of(n, t) for n, t in ((OUTPUT, out), ("q", q), ("v", v))))
    check_no_grad(call)
    asked = dict(keywords)
    return_lse = asked.pop("return_lse", False)
    asked.pop("window", None)
    left, right = call.window or (-1, -1)
    asked["window_left"] = -1 if left is None else min(left, MAX_ROWS)
    asked["window_right"] = -1 if right is None else min(right, MAX_ROWS)
    if config is not None:
        asked["config"] = config if isinstance(config, str) else read_config(config).short_form()
    if any(asked.get(name) is not None for name in PACKED):
        packed = (asked.pop(name, None) for name in PACKED)
        result, lse = varlen(q, k, v, *packed, **asked)
    else:
        for name in PACKED:
            asked.pop(name, None)
        result, lse = dense(q, k, v, **asked)
    if out is not None:
        result = out.copy_(result)
    return (result, lse) if return_lse else result


def _shape_of(name: str, tensor: Tensor) -> TensorView:
    """Describe a tensor that may have no memory."""
    return TensorView(name, tuple(tensor.shape), (), tensor.dtype, tensor.device)


def _validate(call: Call, config: GivenConfig | None) -> None:
    """Check the lengths of a call. On the CPU they are checked anyway."""
    if _is_compiling() or _is_tracing() or lacks_memory(*call[:3]):
        raise UnsupportedError(
            "validate=True reads values of cu_seqlens, seqused_k and block_table, which have none"
            " while a function is compiled; validate outside of it"
        )
    if config is not None or not call.q.is_cpu:
        problem, _ = check_call(call)
        check_lengths(problem, call)
