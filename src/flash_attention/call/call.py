# SPDX-License-Identifier: Apache-2.0
"""Call: the tensors and the options of one call of attention.

The keywords of `attention` are the fields of `Call`. Every function that takes these keywords
passes them on to `Call` unchanged. `Keywords` repeats their types for type checkers.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

from torch import Tensor

from flash_attention.call.function import Function

Window = tuple[int | None, int | None]
"""How many keys a query sees before and after the key that it is aligned with; None and -1 mean
no limit."""


Noted = tuple[tuple[object, ...], Sequence[Tensor], tuple[object, ...] | None]
"""What a plan is noted by: a kind of call, tensors, and lengths if sequences have their own."""


_numel = Tensor.numel


class Call(NamedTuple):
    """One call of attention, as the caller wrote it. `attention` documents the fields.

    It has methods and no properties: torch.compile follows a named tuple's properties only since
    torch 2.11.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor | None = None
    sinks: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_k: Tensor | None = None
    rng_state: Tensor | None = None
    block_table: Tensor | None = None
    q_descale: Tensor | None = None
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None
    causal: bool = False
    window: Window | None = None
    softmax_scale: float | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    split_keys: int | None = None
    batch_invariant: bool = False
    function: Function | None = None
    return_max: bool = False
    return_lse: bool = False

    def descales(self) -> dict[str, Tensor]:
        """The descale factors of q, k and v that are given, by name."""
        named = zip(DESCALES, self[10:13], strict=True)
        return {name: factor for name, factor in named if factor is not None}

    def extras(self) -> dict[str, Tensor]:
        """The given tensors besides q, k, v and out, by name."""
        return {
            name: tensor
            for name, tensor in zip(EXTRAS, self[4:13], strict=True)
            if tensor is not None
        }

    def tensors(self) -> dict[str, Tensor]:
        """The given tensors by name."""
        named = zip(self._fields, self[:13], strict=False)
        return {name: tensor for name, tensor in named if tensor is not None}

    def keywords(self) -> Keywords:
        """The keywords of the call, to be passed on with other q, k and v, without those that ask
        for more results."""
        return cast(Keywords, dict(zip(KEYWORDS[:-2], self[4:-2], strict=True)))

    def with_lse(self) -> Call:
        """The call that also returns its log-sum-exp."""
        return Call(*self[:-1], return_lse=True)

    def with_whole_window(self) -> Call:
        """The call whose window has integers in place of 0-d tensors."""
        return self._replace(window=whole_window(self.window))

    def needs_grad(self) -> bool:
        """Whether autograd would expect a gradient from this call."""
        out, sinks = self.out, self.sinks
        try:
            return (
                self.q.requires_grad
                or self.k.requires_grad
                or self.v.requires_grad
                or (out is not None and out.requires_grad)
                or (sinks is not None and sinks.requires_grad)
                or (self.k_descale is not None and self._descales_need_grad())
                or (self.function is not None and self.function.needs_grad())
            )
        except AttributeError:  # of something that is no tensor, which the checks refuse
            return False

    def _descales_need_grad(self) -> bool:
        return any(factor.requires_grad for factor in self.descales().values())

    def keyed(self) -> Call:
        """The call with the key of its function in place of it, so that plans which are kept keep
        no captured tensors."""
        key: Any = self.function and self.function.key
        return self._replace(function=key)

    def key(self) -> tuple[object, ...]:
        """Everything that a plan depends on. Calls with the same key differ only in their data."""
        if isinstance(self.function, Function):
            return self.keyed().key()
        q, k, v = self[:3]
        return (
            # One tuple is built faster than one out of three.
            q.shape,
            q.stride(),
            q.dtype,
            q.device,
            k.shape,
            k.stride(),
            k.dtype,
            k.device,
            v.shape,
            v.stride(),
            v.dtype,
            v.device,
            q.is_neg() or k.is_neg() or v.is_neg(),
            self.key_beside_qkv(),
        )

    def kind_and_tensors(self, with_lse: bool = False) -> Noted:
        """What a plan of this call, or of it `with_lse`, is noted by: its options, its tensors, and
        its lengths. These are None if all sequences are as long as the tensors, and the options
        then have the sizes. If they are not, tensors are compared apart from lengths, as
        `kin_sizes` says."""
        if isinstance(self.function, Function):
            return self.keyed().kind_and_tensors(with_lse)
        q, k, v, out, a, b, c, d, r, e, f, g, h = every = self[:13]  # a to h are the extras
        options = self[13:]
        if b is c is d is None:
            sizes = (q.numel(), k.numel(), with_lse)
            if a is r is e is f is g is h is out is None:  # as in most calls
                return (sizes, options), (q, k, v), None
            return (sizes, self.key_beside_qkv()), (q, k, v), None
        if c is b:  # one tensor has the lengths of queries and of keys
            every = (*every[:6], None, *every[7:])
        tensors: list[Any] = [t for t in every if t is not None]
        given: tuple[Any, ...] = (out is None, a is None, b is None, c is None, c is b, d is None)
        given += (r is None,)
        if g is not None:  # one factor may be that of several tensors
            each = {id(t): t for t in tensors}
            given += tuple(map(list(each).index, map(id, tensors)))
            tensors = list(each.values())
        longest_q, longest_k, return_lse = options[5], options[6], options[-1] or with_lse
        kind = (given, e is None, f is None, h is None, options[:5], options[7:-1], return_lse)
        if e is None:
            return kind, tensors, (longest_q, longest_k, *map(_numel, tensors))
        if longest_k is not None:
            longest_k = self.bound_of_pages()
        return kind, tensors, (longest_q, longest_k, e.shape, e.stride(), *map(_numel, tensors))

    def key_beside_qkv(self) -> tuple[object, ...]:
        """The part of the key that does not depend on q, k and v."""
        _, _, _, out, a, b, c, d, r, e, f, g, h = self[:13]  # a to h are the extras
        if a is b is c is d is r is e is f is g is h is None:  # as in most calls
            if out is None:
                return self[13:]
            return out.shape, out.stride(), out.dtype, out.device, out.is_neg(), self[13:]
        tensors = tuple(
            None if t is None else (t.shape, t.stride(), t.dtype, t.device, t.is_neg())
            for t in self[3:13]
        )
        if e is None or self.max_seqlen_k is None:
            return tensors, self[13:]
        return tensors, self[13:19], self.bound_of_pages(), self[20:]

    def bound_of_pages(self) -> int | None:
        """The most keys that a sequence in pages is planned with: max_seqlen_k, rounded up to four
        significant bits, so that few plans serve all steps of a growing sequence."""
        bound = self.max_seqlen_k
        if type(bound) is not int or bound < 16:
            return bound
        step = 1 << (bound.bit_length() - 4)
        return -(-bound // step) * step


def kin_sizes(name: str, tensor: Tensor) -> tuple[list[int | None], list[int | None]]:
    """The sizes and the strides in which a tensor of a call agrees with its kin's; None for those
    that lengths decide. `name` is that of its field."""
    sizes: list[int | None] = list(tensor.shape)
    strides: list[int | None] = list(tensor.stride())
    if name == "block_table":
        return [None] * len(sizes), [None, *strides[1:]]
    if name in ("sinks", "rng_state") or (name in DESCALES and len(sizes) < 2):
        return sizes, strides
    if name in ("lse", "dlse") and len(sizes) == 2:  # (heads, total)
        return [sizes[0], None], [None, strides[1]]
    return [None, *sizes[1:]], strides


EXTRAS = Call._fields[4:13]
DESCALES = EXTRAS[-3:]
KEYWORDS = Call._fields[4:]
BACKWARD_KEYWORDS = tuple(
    name
    for name in KEYWORDS
    if name
    not in ("block_table", *DESCALES, "split_keys", "batch_invariant", "return_max", "return_lse")
)
"""The keywords that gradients depend on."""


class Keywords(TypedDict, total=False):
    """The keywords of a call, for type checkers. `out`, `return_max` and `return_lse` are missing,
    because the overloads of a function declare them."""

    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_k: Tensor | None
    rng_state: Tensor | None
    block_table: Tensor | None
    q_descale: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    causal: bool
    window: Window | None
    softmax_scale: float | None
    softcap: float
    dropout_p: float
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    split_keys: int | None
    batch_invariant: bool
    function: Function | None


def call_of(
    function: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, keywords: dict[str, Any]
) -> Call:
    """Make a call from a function's arguments. Raises TypeError for an unknown keyword."""
    try:
        call = Call(q, k, v, out, **keywords)
    except TypeError:
        check_keywords(function, keywords)
        raise
    return call if call.window is None else call.with_whole_window()


def whole_window(window: Window | None) -> Window | None:
    """Convert 0-d tensors in a window to integers, which waits for their device. Anything else that
    is no window is returned unchanged, and the checks refuse it."""
    if not isinstance(window, tuple) or not any(isinstance(side, Tensor) for side in window):
        return window
    return cast(Window, tuple(map(_whole, window)))


def _whole(side: Any) -> Any:
    if isinstance(side, Tensor) and side.ndim == 0 and not side.is_floating_point():
        return int(side)
    return side


INSTEAD = {
    "attn_mask": "there are no mask tensors here; pass causal=True, a window, or sequences of their"
    " own lengths (cu_seqlens_q and cu_seqlens_k, or seqused_k), or call"
    " flash_attention.compat.sdpa.scaled_dot_product_attention, which takes them",
    "key_padding_mask": "there are no mask tensors here; if the padding is at the end, pass"
    " seqused_k=key_padding_mask.sum(-1, dtype=torch.int32) of a mask that is True for keys, else"
    " pack the sequences with flash_attention.compat.bert_padding.unpad_input and pass cu_seqlens_q"
    " and cu_seqlens_k",
    "num_splits": "pass split_keys, how many keys a split has, or batch_invariant=True for results"
    " that do not depend on the rest of the batch",
    "dropout_p": "this function has no dropout; leave it out",
    **dict.fromkeys(
        ("score", "mask"), "pass function=flash_attention.Function(score=f, mask=g) instead"
    ),
    "return_max": "this function returns no maxima; leave it out",
    "alibi_slopes": "pass function=flash_attention.Function(flash_attention.scores.alibi(slopes)),"
    " or call flash_attention.compat.flash_attn.flash_attn_func, which takes them",
}
"""What to do instead of passing keywords that functions of other libraries have."""


def check_keywords(
    function: str, given: Iterable[str], allowed: tuple[str, ...] = KEYWORDS
) -> None:
    """Raise TypeError for a keyword that is not allowed, and say what to do instead, or suggest the
    nearest one."""
    for name in given:
        if name not in allowed:
            parts = [keyword for keyword in allowed if name in keyword.split("_")]
            near = parts or difflib.get_close_matches(name, allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = f": {INSTEAD[name]}" if name in INSTEAD else hint
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def with_keywords_in(names: Iterable[str]) -> Callable[[AnyFunction], AnyFunction]:
    """Make `help` and `inspect` show some keywords of a call in a function's signature."""
    fields = inspect.signature(Call).parameters
    hints = {name: getattr(h, "__forward_arg__", h) for name, h in Call.__annotations__.items()}
    shown = [fields[name].replace(annotation=hints[name]) for name in names]
    return lambda function: _showing(function, shown)


def with_keywords(function: AnyFunction) -> AnyFunction:
    """Make `help` and `inspect` show all keywords of a call in a function's signature."""
    return with_keywords_in(KEYWORDS)(function)


def with_keywords_of(source: Callable[..., Any]) -> Callable[[AnyFunction], AnyFunction]:
    """Make `help` and `inspect` show the keywords of another function in this one's signature."""
    every = inspect.signature(source).parameters.values()
    keywords = [p for p in every if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return lambda function: _showing(function, keywords)


def _showing(function: AnyFunction, more: Iterable[inspect.Parameter]) -> AnyFunction:
    own = inspect.signature(function)
    shown = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    shown += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in more]
    vars(function)["__signature__"] = own.replace(parameters=shown)
    return function
