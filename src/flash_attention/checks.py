# SPDX-License-Identifier: Apache-2.0
"""What a call must satisfy before anything is compiled, allocated or written.

The rules read `TensorView`s, plain descriptions of tensors, so they hold without a GPU too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.overlap import Layout, may_overlap, overlaps_itself

DIMS = ("batch", "seq", "heads", "d_head")
DTYPES = (torch.float16, torch.bfloat16)
DEVICE_TYPES = ("cuda", "cpu")  # run by the GPU, run by the emulator
ALIGNMENT = 16  # bytes that one copy instruction moves; its address is a multiple of them
MAX_GRID_YZ = 65535  # CUDA's limit on the second and third grid dimension


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
    """A kernel config is a FlashForwardKernelConfig, nothing that looks like one."""
    if not isinstance(config, FlashForwardKernelConfig):
        raise KernelConfigError(
            f"the kernel config is a {type(config).__name__}; pass a FlashForwardKernelConfig"
            " (parse_kernel_config turns its short form into one)",
            rule="type",
        )


def check_inputs(q: TensorView, k: TensorView, v: TensorView) -> None:
    """The rules that q, k and v obey whatever the kernel config."""
    for view in (q, k, v):
        _check_kind(view)
    for view in (k, v):
        _check_like(view, q)
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
    for view in (q, k, v):
        _check_strides(view)


def check_given_output(o: TensorView, q: TensorView) -> None:
    """The rules that the output tensor obeys whatever the kernel config."""
    _check_kind(o)
    _check_like(o, q)
    _check_strides(o)
    if overlaps_itself(o.layout):
        raise UnsupportedError(
            f"o has shape {_shape(o.shape)} and strides {_shape(o.strides)}, so several of its"
            " elements share memory; pass a tensor that was not expanded, or leave o out"
        )


def check_config_fits(config: FlashForwardKernelConfig, views: Sequence[TensorView]) -> None:
    """The rules that tie q, k, v and o to the kernel that was chosen."""
    q, k, *_ = views
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


def _check_like(view: TensorView, q: TensorView) -> None:
    for what, given, wanted in (
        ("shape", _shape(view.shape), _shape(q.shape)),
        ("dtype", view.dtype, q.dtype),
        ("device", view.device, q.device),
    ):
        if given != wanted:
            raise UnsupportedError(
                f"{view.name} has {what} {given}, q has {what} {wanted};"
                " q, k, v and o must agree in shape, dtype and device"
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
