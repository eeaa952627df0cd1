# SPDX-License-Identifier: Apache-2.0
"""What a call must satisfy before anything is compiled, allocated or written.

The rules read `TensorView`s, plain descriptions of tensors, so they hold without a GPU too.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import torch

from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_configs import (
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)
from flash_attention.overlap import Layout, may_overlap, overlaps_itself

DIMS = ("batch", "seq", "heads", "d_head")
DTYPES = (torch.float16, torch.bfloat16)
DEVICE_TYPES = ("cuda", "cpu")  # run by the GPU, run by the emulator
ALIGNMENT = 16  # bytes that one copy instruction moves; its address is a multiple of them
MAX_GRID_YZ = 65535  # CUDA's limit on the second and third grid dimension
MAX_GRID_X = (1 << 31) - 1  # and on the first
MAX_ROWS = 1 << 30  # numbers of rows and their sums fit in 32 bits
OTHER_FAMILY = "pass a HopperForwardKernelConfig, whose kernels do; it needs sm_90 (H100, H200)"


@dataclass(frozen=True)
class TensorView:
    """What the rules need to know of one tensor; strides in elements, the pointer in bytes."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    pointer: int = 0

    @classmethod
    def of(cls, name: str, tensor: object) -> TensorView:
        """Describe a tensor, or say why it cannot be described."""
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(
                f"{name} is a {type(tensor).__name__}; pass a torch.Tensor of shape {_shape(DIMS)}"
            )
        if tensor.layout != torch.strided:
            raise UnsupportedError(
                f"{name} has layout {tensor.layout}; pass a dense tensor, {name}.to_dense()"
            )
        pointer = 0 if tensor.is_meta else tensor.data_ptr()
        shape, strides = tuple(tensor.shape), tensor.stride()
        return cls(name, shape, strides, tensor.dtype, tensor.device, pointer)

    @cached_property
    def layout(self) -> Layout:
        """The same view with strides in bytes."""
        size = self.dtype.itemsize
        return Layout(self.shape, tuple(s * size for s in self.strides), size)


def check_config_type(config: object) -> None:
    """A kernel config is an instance of one of the families, nothing that looks like one."""
    if not isinstance(config, KernelConfig):
        raise KernelConfigError(
            f"the kernel config is a {type(config).__name__}; pass a FlashForwardKernelConfig or a"
            " HopperForwardKernelConfig (parse_kernel_config turns a short form into one)",
            rule="type",
        )


def check_inputs(q: TensorView, k: TensorView, v: TensorView) -> None:
    """The rules that q, k and v obey whatever the kernel config."""
    for view in (q, k, v):
        _check_kind(view)
    for view in (k, v):
        _check_same(view, q, "dtype")
        _check_same(view, q, "device")
    if k.shape != v.shape:
        raise UnsupportedError(
            f"k has shape {_shape(k.shape)}, v has shape {_shape(v.shape)}; k and v must agree in"
            " shape"
        )
    if (k.shape[0], k.shape[3]) != (q.shape[0], q.shape[3]):
        raise UnsupportedError(
            f"k has shape {_shape(k.shape)}, q has shape {_shape(q.shape)}; q, k and v must agree"
            " in batch and d_head"
        )
    heads, heads_k = q.shape[2], k.shape[2]
    if heads % heads_k if heads_k else heads:
        raise UnsupportedError(
            f"q has {heads} heads, k and v have {heads_k}; the heads of q must be a multiple of"
            " those of k and v"
        )
    for view in (q, k, v):
        _check_strides(view)
        if view.shape[1] > MAX_ROWS:
            raise UnsupportedError(
                f"{view.name} has {view.shape[1]} rows; a launch takes at most {MAX_ROWS}, split"
                " the tensors along seq"
            )


def check_softmax_scale(scale: object) -> None:
    """The scale of the scores is left out or a positive number that float32 holds."""
    if scale is None:
        return
    if not isinstance(scale, Real):
        raise UnsupportedError(
            f"softmax_scale is a {type(scale).__name__}; pass a positive number, or None for"
            " 1 / sqrt(d_head)"
        )
    if not 0 < ctypes.c_float(float(scale)).value < math.inf:
        raise UnsupportedError(
            f"softmax_scale is {scale}; allowed are positive numbers that float32 holds: to turn"
            " the sign of the scores pass -q"
        )


def check_given_output(o: TensorView, q: TensorView) -> None:
    """The rules that the output tensor obeys whatever the kernel config."""
    _check_kind(o)
    for what in ("shape", "dtype", "device"):
        _check_same(o, q, what)
    _check_strides(o)
    if overlaps_itself(o.layout):
        raise UnsupportedError(
            f"o has shape {_shape(o.shape)} and strides {_shape(o.strides)}, so several of its"
            " elements share memory; pass a tensor that was not expanded, or leave o out"
        )


def check_config_fits(config: KernelConfig, views: Sequence[TensorView]) -> None:
    """The rules that tie q, k, v and o to the kernel that was chosen."""
    q, *_ = views
    dtype, d_head = config.dtype.to_torch_dtype(), q.shape[3]
    if q.dtype != dtype:
        raise UnsupportedError(
            f"the kernel config is for {dtype}, the tensors are {q.dtype};"
            " pass a config of their dtype or convert them"
        )
    if d_head != config.d_head:
        raise UnsupportedError(
            f"the kernel config is for d_head {config.d_head}, the tensors have d_head {d_head};"
            " pass a config of their d_head"
        )
    if isinstance(config, FlashForwardKernelConfig):
        _check_first_family_fits(config, views)
    else:
        _check_hopper_fits(config, q)


def check_causal_fits(config: KernelConfig, causal: bool) -> None:
    """The first family has no masked kernels."""
    if causal and isinstance(config, FlashForwardKernelConfig):
        raise UnsupportedError(
            f"causal=True, and kernels of a FlashForwardKernelConfig mask nothing; {OTHER_FAMILY}"
        )


def check_lse_fits(config: KernelConfig, return_lse: bool) -> None:
    """Kernels of the first family do not store the log-sum-exp."""
    if return_lse and isinstance(config, FlashForwardKernelConfig):
        raise UnsupportedError(
            "return_lse=True, and kernels of a FlashForwardKernelConfig do not store the"
            f" log-sum-exp; {OTHER_FAMILY}"
        )


def check_pointers(views: Iterable[TensorView]) -> None:
    """The first element of each tensor lies where a 16-byte copy may start."""
    for view in views:
        if view.pointer % ALIGNMENT:
            raise UnsupportedError(
                f"{view.name} starts at address {view.pointer:#x},"
                f" {view.pointer % ALIGNMENT} bytes past a multiple of {ALIGNMENT};"
                f" slice at a multiple of {ALIGNMENT // view.dtype.itemsize} elements, or copy it"
                f" with {view.name}.clone()"
            )


def check_no_overlap(o: TensorView, inputs: Iterable[TensorView]) -> None:
    """Nothing the kernel stores lands in what it still has to load."""
    for view in inputs:
        if may_overlap(o.pointer - view.pointer, view.layout, o.layout):
            raise UnsupportedError(
                f"o and {view.name} overlap in memory, o would overwrite {view.name} while it is"
                " read; pass an o with memory of its own, or leave o out"
            )


def check_no_grad(requires_grad: bool) -> None:
    """There is no backward pass, so no gradient may be expected from the call."""
    if requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "a tensor requires grad, and this function has no backward pass;"
            " call it under torch.no_grad() or pass q.detach(), k.detach(), v.detach()"
        )


def _check_kind(view: TensorView) -> None:
    if view.device.type not in DEVICE_TYPES:
        raise UnsupportedError(
            f"{view.name} is on {view.device}; a CUDA tensor is needed, move it with"
            f' {view.name}.to("cuda"), or with {view.name}.cpu() to have it emulated'
        )
    if view.dtype not in DTYPES:
        raise UnsupportedError(
            f"{view.name} is {view.dtype}; allowed are torch.float16 and torch.bfloat16, convert"
            f" it with {view.name}.to(torch.bfloat16)"
        )
    if len(view.shape) != len(DIMS):
        raise UnsupportedError(
            f"{view.name} has {len(view.shape)} dimensions, shape {_shape(view.shape)};"
            f" allowed are four: {_shape(DIMS)}"
        )


def _check_same(view: TensorView, q: TensorView, what: str) -> None:
    given, wanted = getattr(view, what), getattr(q, what)
    if given != wanted:
        if what == "shape":
            given, wanted = _shape(given), _shape(wanted)
        raise UnsupportedError(
            f"{view.name} has {what} {given}, q has {what} {wanted};"
            f" q and {view.name} must agree in {what}"
        )


def _check_first_family_fits(config: FlashForwardKernelConfig, views: Sequence[TensorView]) -> None:
    q, k, *_ = views
    if k.shape != q.shape:
        raise UnsupportedError(
            f"k and v have shape {_shape(k.shape)}, q has shape {_shape(q.shape)}, and kernels of a"
            " FlashForwardKernelConfig do not take fewer heads or another length of k and v;"
            f" {OTHER_FAMILY}"
        )
    if 0 in q.shape:
        raise UnsupportedError(
            f"q has shape {_shape(q.shape)}: nothing to compute; every dimension must be at least 1"
        )
    for dim in (0, 2):
        if q.shape[dim] > MAX_GRID_YZ:
            raise UnsupportedError(
                f"{DIMS[dim]} is {q.shape[dim]}; a launch takes at most {MAX_GRID_YZ},"
                f" split the tensors along {DIMS[dim]}"
            )
    for view, field in ((q, "B_r"), (k, "B_c")):
        block, seq_len = getattr(config, field), view.shape[1]
        if seq_len % block:
            raise UnsupportedError(
                f"{view.name} has {seq_len} rows, which is no multiple of {field} = {block};"
                f" pad to {-(-seq_len // block) * block} rows, or pass a config whose {field}"
                f" divides {seq_len}"
            )
    row_stride = config.static_row_stride
    for view in views if row_stride else ():
        if view.strides[1] != row_stride:
            raise UnsupportedError(
                f"the kernel config has rows {row_stride} elements apart (static_row_stride), the"
                f" rows of {view.name} are {view.strides[1]} apart; pass tensors with that row"
                " stride, o included, or a config with static_row_stride = 0"
            )


def _check_hopper_fits(config: HopperForwardKernelConfig, q: TensorView) -> None:
    batch, seq_len, heads, _ = q.shape
    tiles = batch * heads * -(-seq_len // config.B_r)
    if tiles > MAX_GRID_X:
        raise UnsupportedError(
            f"q has shape {_shape(q.shape)}, {tiles} tiles of {config.B_r} rows of one head; a"
            f" launch takes at most {MAX_GRID_X}, split the tensors along batch"
        )


def _check_strides(view: TensorView) -> None:
    if view.strides[3] != 1 and view.shape[3] != 1:
        raise UnsupportedError(
            f"the last dimension of {view.name} has stride {view.strides[3]};"
            f" it must be contiguous (stride 1), copy it with {view.name}.contiguous()"
        )
    elements = ALIGNMENT // view.dtype.itemsize
    for dim, size, stride in zip(DIMS[:3], view.shape[:3], view.strides[:3], strict=True):
        if size > 1 and stride % elements:
            raise UnsupportedError(
                f"the {dim} stride of {view.name} is {stride} elements; it must be a multiple of"
                f" {elements}, so that every row starts on {ALIGNMENT} bytes; copy it with"
                f" {view.name}.contiguous()"
            )


def _shape(values: Iterable[object]) -> str:
    return f"({', '.join(map(str, values))})"
