# SPDX-License-Identifier: Apache-2.0
"""What kernels can read and write, and checks that a problem fits a kernel config, for all
families."""

from __future__ import annotations

from collections.abc import Iterable

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import (
    DIMS,
    MAX_ROWS,
    PACKED_DIMS,
    TensorView,
    advice_for,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig

ALIGNMENT = 16  # bytes of one copy instruction, which its address is a multiple of
MAX_GRID_X = (1 << 31) - 1  # CUDA's limit on the first grid dimension
MAX_GRID_YZ = 65535  # CUDA's limit on the second and third grid dimension


def check_grid(problem: Problem) -> None:
    """Check that heads and batch fit the second and third dimension of a grid."""
    for dim, size in (("batch", problem.batch), ("heads", problem.heads)):
        if size > MAX_GRID_YZ:
            raise UnsupportedError(
                f"{dim} is {size}; a launch takes at most {MAX_GRID_YZ}, split the tensors along"
                f" {dim}"
            )


def check_dtype(config: KernelConfig, problem: Problem) -> None:
    """Check that the config is for the tensors' element type."""
    if problem.dtype != config.input_dtype:
        raise UnsupportedError(
            f"the kernel config is for {config.input_dtype}, the tensors are {problem.dtype};"
            " pass a config of their dtype or convert them"
        )
    if problem.output_dtype != config.dtype.to_torch_dtype():
        raise UnsupportedError(
            f"the kernel config stores {config.dtype.to_torch_dtype()}, the output is"
            f" {problem.output_dtype}; pass a config of its dtype, or another out"
        )
    if (given := problem.kv_dtype or problem.dtype) != config.kv_dtype:
        raise UnsupportedError(
            f"the kernel config is for k and v of {config.kv_dtype}, they are {given};"
            " leave config out, or convert them"
        )


def check_values(config: KernelConfig, problem: Problem) -> None:
    """Check that the config is for the dimension of v that is contiguous."""
    if config.v_transposed and not problem.v_transposed:
        raise UnsupportedError(
            "the kernel config is for a v of dense tensors whose keys are contiguous, and this v is"
            " another; leave config out, or pass one without values_transposed"
        )
    if problem.v_transposed and not config.v_transposed:
        raise UnsupportedError(
            "the keys of v are contiguous, and the kernel config is for contiguous columns; leave"
            " config out, pass one with values_transposed, or pass v.contiguous()"
        )


def check_columns(config: KernelConfig, problem: Problem) -> None:
    """Check that no tensor has a larger head dimension than the config."""
    for name, d_head in (("q and k have", problem.d_head), ("v has", problem.d_v)):
        if d_head > config.d_head:
            raise UnsupportedError(
                f"the kernel config is for d_head up to {config.d_head}, {name} d_head {d_head};"
                " pass a config with at least their d_head"
            )


def memory_refusal(
    view: TensorView, *, packed: bool, contiguous: int = -1, alignment: int = ALIGNMENT
) -> str | None:
    """Say why copies of `alignment` bytes do not work with a tensor that has a batch dimension, one
    of whose dimensions has to be contiguous. Return None if they do."""
    dims = ("", *PACKED_DIMS) if packed else DIMS
    elements = alignment // view.dtype.itemsize
    copy = advice_for(view.name, f"copy it with {view.name}.contiguous()")
    rows, d_head = view.shape[1], view.shape[-1]
    if d_head % elements or d_head == 0:
        padded = -(-d_head // elements) * elements or elements
        return (
            f"{view.name} has d_head {d_head}; allowed are multiples of {elements}: pad with zeros"
            f" to {padded} (torch.nn.functional.pad) and pass softmax_scale, whose default"
            " follows the padded d_head"
        )
    if view.strides[contiguous] != 1:
        return (
            f"the last dimension of {view.name} has stride {view.strides[-1]};"
            f" it must be contiguous (stride 1), {copy}"
        )
    for dim, size, stride in zip(dims, view.shape, view.strides, strict=True):
        if size > 1 and stride % elements and dim != dims[contiguous]:
            return (
                f"the {dim} stride of {view.name} is {stride} elements; it must be a multiple of"
                f" {elements}, so that every row starts on {alignment} bytes; {copy}"
            )
    if rows > MAX_ROWS:
        return (
            f"{view.name} has {rows} rows; a launch takes at most {MAX_ROWS}, split the tensors"
            f" along {dims[-3]}"
        )
    return None


def check_pointers(views: Iterable[TensorView], alignment: int = ALIGNMENT) -> None:
    """Check that the address of each tensor is a multiple of some bytes."""
    for view in views:
        if view.pointer % alignment:
            raise UnsupportedError(
                f"{view.name} starts at address {view.pointer:#x},"
                f" {view.pointer % alignment} bytes past a multiple of {alignment};"
                f" slice at a multiple of {alignment // view.dtype.itemsize} elements, or"
                f" {advice_for(view.name, f'copy it with {view.name}.clone()')}"
            )
