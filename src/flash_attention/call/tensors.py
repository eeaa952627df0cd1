# SPDX-License-Identifier: Apache-2.0
"""Checks of q, k, v and the output that no kernel has a part in: types, devices, shapes, memory of
their own. They read `TensorView`s, which describe tensors, so they need no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import torch
from torch.autograd import forward_ad

from flash_attention.call.call import Call
from flash_attention.call.overlap import Layout, may_overlap, overlaps_itself
from flash_attention.call.results import E4M3
from flash_attention.call.transposed import has_transposed_v
from flash_attention.errors import UnsupportedError, one
from flash_attention.program.tangent import has_tangent

DIMS = ("batch", "seq", "heads", "d_head")
PACKED_DIMS = ("total", "heads", "d_head")
PAGED_DIMS = ("pages", "page_size", "heads", "d_head")
OUTPUT = "the output"  # its name in messages, since `attention` calls it out and `forward` o
OF_QUERIES = ("q", OUTPUT, "o", "do", "dq")
"""The tensors that have a row for every query. The others have one for every key."""
DTYPES = (torch.float16, torch.bfloat16)
DEVICE_TYPES = ("cuda", "cpu")  # run on the GPU, and run in the emulator
MAX_ROWS = 1 << 30  # so that sums of two numbers of rows fit in 32 bits


@dataclass(frozen=True)
class TensorView:
    """What the checks need to know about a tensor. Strides are in elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    pointer: int = 0

    @classmethod
    def of(cls, name: str, tensor: object, dims: tuple[str, ...] = DIMS) -> TensorView:
        """Describe a tensor. Raises UnsupportedError if it has no plain strided memory."""
        if not isinstance(tensor, torch.Tensor):
            kind = one(type(tensor).__name__)
            raise UnsupportedError(f"{name} is {kind}; pass a torch.Tensor of shape {shown(dims)}")
        if tensor.is_nested:
            packed = f"{name}.values() of a jagged one, with cu_seqlens and max_seqlen"
            advice = f"pass the rows of its sequences one after the other, {packed}"
            raise UnsupportedError(f"{name} is a nested tensor; {advice_for(name, advice)}")
        if tensor.layout != torch.strided:
            advice = advice_for(name, f"pass a dense tensor, {name}.to_dense()")
            raise UnsupportedError(f"{name} has layout {tensor.layout}; {advice}")
        if tensor.is_neg():
            advice = advice_for(name, f"pass {name}.resolve_neg()")
            raise UnsupportedError(f"the memory of {name} holds its values negated; {advice}")
        pointer = 0 if tensor.is_meta else tensor.data_ptr()
        shape, strides = tuple(tensor.shape), tensor.stride()
        return cls(name, shape, strides, tensor.dtype, tensor.device, pointer)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the view, with strides in bytes."""
        size = self.dtype.itemsize
        return Layout(self.shape, tuple(s * size for s in self.strides), size)

    @property
    def with_batch(self) -> TensorView:
        """Return the view as (batch, seq, heads, d_head). A packed tensor has batch 1."""
        if len(self.shape) == len(DIMS):
            return self
        return replace(self, shape=(1, *self.shape), strides=(0, *self.strides))


@dataclass(frozen=True)
class Packing:
    """Which tensors hold packed sequences, without a batch dimension, and how else k and v differ
    from dense tensors with contiguous rows."""

    q: bool = False
    kv: bool = False
    paged: bool = False  # a KV cache
    v_transposed: bool = False  # the keys of v are contiguous

    @classmethod
    def of(cls, call: Call) -> Packing:
        """Read the packing from the arguments of a call."""
        q, kv = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None
        return cls(q, kv, call.block_table is not None, has_transposed_v(call))


NOT_PACKED = Packing()


def check_shapes(
    q: TensorView, k: TensorView, v: TensorView, packing: Packing = NOT_PACKED
) -> None:
    """Check that the shapes of q, k and v fit together, for kernels and for torch."""
    _check_dims(q, packing.q, "cu_seqlens_q")
    for view in (k, v):
        check_not_bytes(view)
        if packing.paged:
            _check_paged_dims(view)
        else:
            _check_dims(view, packing.kv, "cu_seqlens_k")
    if E4M3 in (k.dtype, v.dtype):
        _check_same(v, k, "dtype")
    for view in (k, v):
        if k.dtype != E4M3:  # q may have more bits
            _check_same(view, q, "dtype")
        _check_same(view, q, "device")
    if k.shape[:-1] != v.shape[:-1]:
        raise UnsupportedError(
            f"{k.name} has shape {shown(k.shape)}, {v.name} has shape {shown(v.shape)}; {k.name}"
            f" and {v.name} must agree in all but the last dimension"
        )
    check_d_head(q.shape, k.shape, k.name)
    if not (packing.q or packing.kv or packing.paged) and k.shape[0] != q.shape[0]:
        raise UnsupportedError(
            f"{k.name} has shape {shown(k.shape)}, q has shape {shown(q.shape)}; q, {k.name} and"
            f" {v.name} must agree in batch"
        )
    if q.shape[-1] == 0:
        raise UnsupportedError(
            f"q has shape {shown(q.shape)}, {k.name} has shape {shown(k.shape)}: scores need a"
            " d_head of at least 1"
        )
    heads, heads_k = q.shape[-2], k.shape[-2]
    if heads % heads_k if heads_k else heads:
        raise UnsupportedError(
            f"q has {heads} heads, {k.name} and {v.name} have {heads_k}; the heads of q must be a"
            f" multiple of those of {k.name} and {v.name}"
        )


def check_given_output(o: TensorView, q: TensorView, v: TensorView) -> None:
    """Check a given output tensor, for kernels and for torch."""
    check_output_kind(o, q, v)
    _check_own_memory(o)


def check_gradient(do: TensorView, o: TensorView) -> None:
    """Check the gradient of the output, for kernels and for torch."""
    if do.shape != o.shape:
        raise UnsupportedError(
            f"do has shape {shown(do.shape)}, o has shape {shown(o.shape)}; the gradient of the"
            " output has its shape"
        )
    for what in ("dtype", "device"):
        _check_same(do, o, what)


def check_no_overlap(o: TensorView, inputs: Iterable[TensorView]) -> None:
    """Check that the output does not overlap an input in memory."""
    for view in inputs:
        if may_overlap(o.pointer - view.pointer, view.layout, o.layout):
            raise UnsupportedError(
                f"{o.name} and {view.name} overlap in memory: {view.name} would be overwritten"
                " while it is read; pass a tensor with memory of its own, or leave it out"
            )


def check_d_head(q: Sequence[int], k: Sequence[int], name: str = "k") -> None:
    """Check that the shapes of q and k agree in d_head."""
    if k[-1] != q[-1]:
        raise UnsupportedError(
            f"{name} has shape {shown(k)}, q has shape {shown(q)}; q and {name} must agree in"
            " d_head"
        )


def check_no_grad(call: Call, *others: torch.Tensor | None) -> None:
    """Raise UnsupportedError if autograd would expect a gradient or a tangent of a call's tensors
    or of others."""
    if torch.is_grad_enabled() and (
        call.needs_grad() or any(getattr(other, "requires_grad", False) for other in others)
    ):
        raise UnsupportedError(
            "a tensor requires grad, and this function is not differentiable; call attention, which"
            " is, or call this one under torch.no_grad()"
        )
    check_no_tangent(call, *others)


def check_recordable(call: Call) -> None:
    """Raise UnsupportedError for a call that autograd cannot record, whatever the kernels."""
    if call.out is not None:
        raise UnsupportedError(
            "out is given and a tensor requires grad, and autograd does not record a result in a"
            " given tensor; leave out out, or call under torch.no_grad()"
        )
    check_16_bit(call)
    check_not_paged(call)
    check_no_tangent(call)


def check_16_bit(call: Call) -> None:
    """Check that the tensors of a call whose gradients are computed are not 8-bit."""
    if getattr(call.k, "dtype", None) == E4M3:
        raise UnsupportedError(
            f"k is {E4M3}, and there are no gradients of 8-bit tensors and their factors; pass"
            " 16-bit tensors, or call under torch.no_grad()"
        )


def check_not_paged(call: Call) -> None:
    """Check that the keys of a call whose gradients are computed are not in pages."""
    if call.block_table is not None:
        raise UnsupportedError(
            "block_table is given, and there are no gradients of a paged KV cache; pass k and v as"
            " dense tensors, or call under torch.no_grad()"
        )


def check_no_tangent(call: Call, *others: torch.Tensor | None) -> None:
    """Raise UnsupportedError if a tensor has a tangent of forward-mode autograd."""
    if forward_ad._current_level >= 0 and any(map(has_tangent, (*given_tensors(call), *others))):
        refuse_tangent()


def given_tensors(call: Call) -> tuple[torch.Tensor | None, ...]:
    """Return the tensors of a call that may have tangents, those that its function reads too."""
    return (*call[:5], *call[10:13], *getattr(call.function, "tensors", ()))


def refuse_tangent() -> NoReturn:
    """Raise UnsupportedError for a derivative in forward mode."""
    raise UnsupportedError(
        "a tensor has a tangent, and this function has no forward-mode derivative; pass"
        " torch.autograd.forward_ad.unpack_dual(q).primal, and the same of k and v, or call"
        " torch's scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH)"
    )


def refuse_second_tangent() -> NoReturn:
    """Raise UnsupportedError for a tangent of a derivative, which no kernel computes."""
    raise UnsupportedError(
        "a tensor has a tangent, and on a GPU there is no forward-mode derivative of the gradient"
        " of attention or of its tangent; call torch's scaled_dot_product_attention under"
        " sdpa_kernel(SDPBackend.MATH)"
    )


def check_not_bytes(view: TensorView) -> None:
    """Check that a tensor does not hold 8-bit numbers as bytes, as some KV caches do."""
    if view.dtype == torch.uint8:
        raise UnsupportedError(
            f"{view.name} is torch.uint8; if its bytes are numbers of e4m3, pass"
            f" {view.name}.view({E4M3}), which copies nothing"
        )


def check_kind(view: TensorView) -> None:
    """Check the element type and the device of q, k or v, for kernels."""
    check_not_bytes(view)
    if view.device.type not in DEVICE_TYPES:
        raise UnsupportedError(
            f"{view.name} is on {view.device}; a CUDA tensor is needed, move it with"
            f' {view.name}.to("cuda"), or with {view.name}.cpu() to have it emulated'
        )
    if view.dtype not in (*DTYPES, E4M3):
        raise UnsupportedError(
            f"{view.name} is {view.dtype}; allowed are torch.float16, torch.bfloat16 and {E4M3},"
            f" convert it with {view.name}.to(torch.bfloat16)"
        )


def check_output_kind(o: TensorView, q: TensorView, v: TensorView) -> None:
    """Check the shape, the dtype and the device of an output."""
    wanted = (*q.shape[:-1], v.shape[-1])
    if o.shape != wanted:
        raise UnsupportedError(
            f"{o.name} has shape {shown(o.shape)}; it must have {shown(wanted)}, the shape of q"
            " with the last dimension of v: pass such a tensor, or leave it out"
        )
    if q.dtype != E4M3:
        _check_same(o, q, "dtype")
    elif o.dtype not in DTYPES:
        raise UnsupportedError(
            f"{o.name} is {o.dtype}; the output of {E4M3} tensors is torch.bfloat16 or"
            " torch.float16: pass such a tensor, or leave it out"
        )
    _check_same(o, q, "device")


def _check_own_memory(o: TensorView) -> None:
    if overlaps_itself(o.layout):
        raise UnsupportedError(
            f"{o.name} has shape {shown(o.shape)} and strides {shown(o.strides)}, so several of"
            " its elements share memory; pass a tensor that was not expanded, or leave it out"
        )


def _check_dims(view: TensorView, packed: bool, lengths: str) -> None:
    dims = PACKED_DIMS if packed else DIMS
    if len(view.shape) != len(dims):
        counted = "three, since" if packed else "four, unless"
        raise UnsupportedError(
            f"{view.name} has {len(view.shape)} dimensions, shape {shown(view.shape)};"
            f" allowed are {counted} {lengths} is given: {shown(dims)}"
        )


def _check_paged_dims(view: TensorView) -> None:
    if len(view.shape) != len(PAGED_DIMS):
        raise UnsupportedError(
            f"{view.name} has {len(view.shape)} dimensions, shape {shown(view.shape)}; allowed are"
            f" four, since block_table is given: {shown(PAGED_DIMS)}"
        )


def _check_same(view: TensorView, q: TensorView, what: str) -> None:
    given, wanted = getattr(view, what), getattr(q, what)
    if given != wanted:
        raise UnsupportedError(
            f"{view.name} has {what} {given}, {q.name} has {what} {wanted};"
            f" {q.name} and {view.name} must agree in {what}"
        )


def advice_for(name: str, otherwise: str) -> str:
    """Say what to do about a tensor. A copy of the output would not reach the caller."""
    return "pass another tensor, or leave it out" if name == OUTPUT else otherwise


def shown(values: Iterable[object]) -> str:
    """Format a shape for a message."""
    return f"({', '.join(map(str, values))})"
