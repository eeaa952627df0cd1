# SPDX-License-Identifier: Apache-2.0
"""torch's scaled_dot_product_attention, computed by this package.

It can be called as a function, or replace torch's in a block of code. Tensors are (batch, heads,
seq, d) or (heads, seq, d). As in torch, a causal mask is aligned with the first key: query i sees
the keys j <= i, whatever the lengths. causal_lower_right of torch.nn.attention.bias aligns it with
the last one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NoReturn

import torch
import torch.nn.attention
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from flash_attention.attention import attention
from flash_attention.call.call import Keywords
from flash_attention.call.checks import check_dense
from flash_attention.call.options import check_softmax_scale, check_switch
from flash_attention.call.results import E4M3
from flash_attention.call.tensors import DTYPES
from flash_attention.compat.eight_bits import without_factors
from flash_attention.compat.mask_tensors import mask_options, mask_refusal
from flash_attention.errors import UnsupportedError
from flash_attention.program.tangent import has_tangent

__all__ = ["BACKEND", "Routed", "route_sdpa", "scaled_dot_product_attention", "sdpa_kernel"]

BACKEND = "fa_jit"
"""The name of this package as a backend of `sdpa_kernel`."""
TORCH = F.scaled_dot_product_attention
MULTI_HEAD = F.multi_head_attention_forward
FAST_PATHS = (torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd)
PLAIN: frozenset[type] = frozenset((Tensor, torch.nn.Parameter))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute torch's function of this name, with the same arguments.

    Under torch.autocast tensors are cast as torch casts them. `attn_mask` may be a tensor of bools,
    or of floats that are added to the scores, or causal_upper_left or causal_lower_right of
    torch.nn.attention.bias. A query that a mask leaves without a key has output 0. Returns the
    output, which need not be contiguous. It is differentiable once, in a mask of floats too. Raises
    UnsupportedError for mask tensors in an export, and for everything that `attention`
    does not support.
    """
    try:
        tensors = autocast(query, key, value)
        if reason := no_kernel(tensors, attn_mask, enable_gqa):
            raise UnsupportedError(reason)
        q, k, v = tensors
        ends_last = False
        options: Keywords = {"softmax_scale": scale, "dropout_p": dropout_p}
        if attn_mask is not None:
            if is_causal:
                raise UnsupportedError(
                    "attn_mask is given, and is_causal is True; pass one of the two"
                )
            if (corner := _corner_of(attn_mask)) is None:
                options |= mask_options(attn_mask)
            else:
                is_causal, ends_last = True, corner == "LOWER_RIGHT"
        if q.ndim == 3:
            return _attend(q[None], k[None], v[None], is_causal, options, ends_last)[0]
        return _attend(q, k, v, is_causal, options, ends_last)
    except (AttributeError, RuntimeError, TypeError, UnsupportedError) as error:
        if torch.compiler.is_compiling():  # which does not follow the checks
            raise
        _explain(error, query, key, value, is_causal, scale)


def _explain(
    error: Exception,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
) -> NoReturn:
    """Raise the error that names the argument of SDPA that is wrong, else `error`."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_dense(name, tensor, ("batch", "heads", "seq", "d"))
    check_switch("is_causal", is_causal)
    check_softmax_scale(scale, "scale")
    raise error


@dataclass
class Routed:
    """How many calls in a block of `route_sdpa` were computed here, and how many by torch."""

    here: int = 0  # calls that this package computed
    to_torch: Counter[str] = field(default_factory=Counter)  # calls that torch computed, by reason


_blocks = threading.local()  # .innermost is the route of the thread's innermost block


@contextmanager
def route_sdpa(*, strict: bool = False) -> Iterator[Routed]:
    """Compute the calls of torch's scaled_dot_product_attention in a `with` block here.

    Calls without a kernel here go to torch, and `Routed.to_torch` counts them by reason. With
    `strict` they raise UnsupportedError instead. The block yields a Routed.

    Every call from Python is routed, however the caller imported the function. That includes
    nn.MultiheadAttention, the layers of nn.Transformer, and functions that torch.compile traces in
    the block. Calls of scripted modules are not routed. torch has a fast path that computes a whole
    encoder layer. Inside the block only compiled functions take it, and it counts as a call that
    went to torch.

    The block affects only the thread that enters it. Other threads, such as those of a server or of
    a backward pass, have to enter their own block. Blocks nest, and the innermost one decides.
    Inside, a call of any torch function from Python takes one to two microseconds longer.

    Calls in compiled functions are not counted. If only the run shows that a call has no kernel
    (because of strides or the device), it raises UnsupportedError and does not go to torch.
    """
    route = _Route(strict)
    outer: _Route | None = getattr(_blocks, "innermost", None)
    if outer is not None:
        outer.paused = True
    _blocks.innermost = route
    try:
        with route:
            yield route.routed
    finally:
        _blocks.innermost = outer
        if outer is not None:
            outer.paused = False


@contextmanager
def sdpa_kernel(
    backends: SDPBackend | str | list[SDPBackend | str], set_priority: bool = False
) -> Iterator[Routed]:
    """Select backends as `torch.nn.attention.sdpa_kernel` does, with this package as "fa_jit".

    - `backends`: one backend or a list. If "fa_jit" is listed, calls that have a kernel here are
      computed here, whatever its position in the list. Other calls go to the listed backends of
      torch. If none is listed, they raise UnsupportedError.
    - `set_priority`: passed on to torch.

    The block behaves as one of `route_sdpa`. The function can be used as a decorator too.
    """
    listed = backends if isinstance(backends, list) else [backends]
    if unknown := [b for b in listed if b != BACKEND and not isinstance(b, SDPBackend)]:
        raise UnsupportedError(
            f"backends has {unknown[0]!r}; allowed are members of torch.nn.attention.SDPBackend"
            f" and {BACKEND!r}"
        )
    of_torch = [b for b in listed if isinstance(b, SDPBackend)]
    with ExitStack() as block:
        if of_torch:
            block.enter_context(torch.nn.attention.sdpa_kernel(of_torch, set_priority))
        if BACKEND in listed:
            yield block.enter_context(route_sdpa(strict=not of_torch))
        else:
            yield Routed()


class _Route(TorchFunctionMode):
    """A mode of torch that handles every torch function that its thread calls."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.paused = False
        self.routed = Routed()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self.paused:
            return func(*args, **(kwargs or {}))
        if func is TORCH:
            return self.attention(*args, **(kwargs or {}))
        if func is MULTI_HEAD and PLAIN.issuperset(types):
            return self._multi_head(*args, **(kwargs or {}))
        if func in FAST_PATHS:
            self._to_torch(
                f"torch.{func.__name__} computes a layer at once; to have its attention computed"
                " here call torch.backends.mha.set_fastpath_enabled(False)"
            )
        return func(*args, **(kwargs or {}))

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("need_weights", True):
            return _multi_head(*args, **kwargs)
        self._to_torch(
            "need_weights is True, and attention weights are never formed here; pass"
            " need_weights=False"
        )
        return MULTI_HEAD(*args, **kwargs)

    def _to_torch(self, reason: str) -> None:
        if self.strict:
            raise UnsupportedError(reason)
        if not torch.compiler.is_compiling():
            self.routed.to_torch[reason] += 1

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """Compute scaled_dot_product_attention here if there is a kernel, else by torch."""
        call = (query, key, value, attn_mask, dropout_p, is_causal)
        shared = bool(options.get("enable_gqa", False))
        reason = no_kernel(autocast(query, key, value), attn_mask, shared)
        if reason is None and torch.compiler.is_compiling():
            return scaled_dot_product_attention(*call, **options)
        if reason is None:
            try:
                out = scaled_dot_product_attention(*call, **options)
            except UnsupportedError as error:
                reason = str(error)
            else:
                self.routed.here += 1
                return out
        self._to_torch(reason)
        return TORCH(*call, **options)


def _of_the_innermost(*args: Any, **kwargs: Any) -> Any:
    route: _Route = _blocks.innermost
    return route.attention(*args, **kwargs)


# torch disables the mode while the mode handles a function, so the mode would not see what
# multi_head_attention_forward calls. A copy of that function therefore calls this one instead.
_multi_head = FunctionType(
    MULTI_HEAD.__code__,
    vars(F)
    | {
        "scaled_dot_product_attention": _of_the_innermost,
        "has_torch_function": lambda tensors: False,
    },
    argdefs=MULTI_HEAD.__defaults__,
)


def autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast the tensors as torch.autocast does for scaled_dot_product_attention."""
    device = query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor) -> Tensor:
        keeps = not tensor.is_floating_point() or tensor.dtype == torch.float64
        return tensor if keeps else tensor.to(dtype)

    return cast(query), cast(key), cast(value)


def no_kernel(
    tensors: tuple[Tensor, Tensor, Tensor],
    attn_mask: Any,
    enable_gqa: bool,
) -> str | None:
    """Say why there is no kernel for a call, judging by types, dimensions and options only."""
    query, key, value = tensors
    if any(map(has_tangent, (*tensors, attn_mask))):
        return (
            "a tensor has a tangent, which this function does not take; call attention, which does"
        )
    if any(t.is_nested for t in tensors):
        return "a tensor is nested; pass dense ones, or call attention with cu_seqlens"
    if {t.ndim for t in tensors} not in ({3}, {4}):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        return (
            f"query, key and value have shapes {shapes}; allowed are (batch, heads, seq, d) or"
            " (heads, seq, d) of all three"
        )
    rows = (query.shape[-2], key.shape[-2])
    if attn_mask is not None and _corner_of(attn_mask) is None:
        if why := mask_refusal(attn_mask, query, key):
            return why
    elif attn_mask is not None and (attn_mask.seq_len_q, attn_mask.seq_len_kv) != rows:
        return (
            f"attn_mask is a causal mask of {attn_mask.seq_len_q} queries and"
            f" {attn_mask.seq_len_kv} keys, query and key have {rows[0]} and {rows[1]}; make one of"
            " these lengths"
        )
    if not enable_gqa and query.shape[-3] != key.shape[-3]:
        return (
            f"query has {query.shape[-3]} heads, key {key.shape[-3]}; to have heads share keys pass"
            " enable_gqa=True"
        )
    if query.dtype == E4M3 or not _agree(query, key, value):
        name, instead = "scaled_dot_product_attention", "flash_attention.attention"
        named = {"query": query, "key": key, "value": value}
        return without_factors(name, instead, **named) or _mismatch(query, key, value)
    if query.is_cuda and query.dtype not in DTYPES:
        return f"query is {query.dtype}; allowed are torch.float16 and torch.bfloat16"
    return None


def _corner_of(mask: object) -> str | None:
    """Return UPPER_LEFT or LOWER_RIGHT for a mask of torch.nn.attention.bias, else None. Importing
    its class would take seconds, as it imports torch's compiler."""
    corner: str | None = getattr(getattr(mask, "variant", None), "name", None)
    return corner


def _agree(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether tensors belong together. This runs in every call."""
    q, k, v = query.shape, key.shape, value.shape
    return bool(
        query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and (k == v or k[:-1] == v[:-1])
        and (q == k or (q[-1] == k[-1] and q[:-3] == k[:-3]))
    )


def _mismatch(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Say which tensors do not belong together."""
    for name, tensor in (("key", key), ("value", value)):
        for what in ("dtype", "device"):
            given, wanted = getattr(tensor, what), getattr(query, what)
            if given != wanted:
                return f"{name} has {what} {given}, query {wanted}; they must agree in {what}"
    if key.shape[:-1] != value.shape[:-1]:
        rule = "key and value must agree in all but the last dimension"
    elif query.shape[-1] != key.shape[-1]:
        rule = "query and key must agree in the last dimension"
    else:
        rule = "all three must agree in batch"
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    return "query has shape {}, key {}, value {}; {}".format(*shapes, rule)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    options: Keywords,
    ends_last: bool,
) -> Tensor:
    """Compute attention of (batch, heads, seq, d) tensors with masks aligned to the first key, or
    with `ends_last` to the last one.

    `attention` aligns masks with the last key. So keys that no query sees are cut off, and if there
    are more queries than keys, a window shifts the mask by the difference.
    """
    seq_q, seq_k = query.shape[2], key.shape[2]
    is_shifted = is_causal and not ends_last
    if is_shifted and seq_k > seq_q:
        key, value = key[:, :, :seq_q], value[:, :, :seq_q]
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if is_shifted and seq_q > seq_k:
        options["window"] = (None, seq_q - seq_k)
    else:
        options["causal"] = is_causal
    return attention(q, k, v, **options).transpose(1, 2)
