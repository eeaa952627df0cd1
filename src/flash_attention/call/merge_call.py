# SPDX-License-Identifier: Apache-2.0
"""MergeCall: results of attention over the same queries and different keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.call.checks import check_dense
from flash_attention.call.results import precision_of_lse
from flash_attention.call.tensors import MAX_ROWS, shown
from flash_attention.errors import UnsupportedError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DIMS = ("batch", "seq", "heads", "d")
LSE_DIMS = ("batch", "heads", "seq")


class MergeCall(NamedTuple):
    """The first part, and the others along one more dimension, of which there may be none."""

    o: Tensor  # (batch, seq, heads, d), or packed (total, heads, d)
    lse: Tensor  # (batch, heads, seq), or (heads, total)
    o_rest: Tensor  # (parts - 1, batch, seq, heads, d)
    lse_rest: Tensor

    def parts(self) -> int:
        """The number of parts."""
        return 1 + len(self.o_rest)

    def dtype(self) -> torch.dtype:
        """The dtype of the result: that of the parts, or the wider one."""
        return torch.promote_types(self.o.dtype, self.o_rest.dtype)


def check_merge(call: MergeCall) -> None:
    """Check that the parts belong together."""
    for of, o, lse in (("1", call.o, call.lse), ("2", call.o_rest, call.lse_rest)):
        check_dense(f"o{of}", o, DIMS)
        check_dense(f"lse{of}", lse, LSE_DIMS)
        if o.dtype not in DTYPES:
            raise UnsupportedError(f"o{of} is {o.dtype}; allowed are {', '.join(map(str, DTYPES))}")
        precision = precision_of_lse(o.dtype)
        if lse.dtype != precision:
            raise UnsupportedError(
                f"lse{of} is {lse.dtype}; pass {precision}, as attention returns"
            )
        parts = of == "2"  # there are as many as the first dimension says
        shape, of_lse = tuple(o.shape[parts:]), tuple(lse.shape[parts:])
        if len(shape) not in (3, 4):
            raise UnsupportedError(
                f"o{of} has shape {shown(shape)}; a part is (batch, seq, heads, d), or packed"
                " (total, heads, d)"
            )
        *batch, rows, heads, _ = shape
        wanted = (*batch, heads, rows)
        if of_lse != wanted or lse.shape[:parts] != o.shape[:parts]:
            raise UnsupportedError(
                f"lse{of} has shape {shown(of_lse)}; o{of} has shape {shown(shape)}, so it must be"
                f" {shown(wanted)}"
            )
    _check_alike(call)


def _check_alike(call: MergeCall) -> None:
    o, rest = call.o, call.o_rest
    if o.shape != rest.shape[1:]:
        raise UnsupportedError(
            f"o1 has shape {shown(o.shape)}, o2 has shape {shown(rest.shape[1:])}; parts must agree"
            " in all dimensions"
        )
    if {o.dtype, rest.dtype} == {torch.float16, torch.bfloat16} or (
        o.dtype != rest.dtype and torch.float64 in (o.dtype, rest.dtype)
    ):
        raise UnsupportedError(
            f"o1 is {o.dtype}, o2 is {rest.dtype}; parts must agree in dtype, or one is"
            " torch.float32"
        )
    for name, tensor in (("lse1", call.lse), ("o2", rest), ("lse2", call.lse_rest)):
        if tensor.device != o.device:
            raise UnsupportedError(
                f"{name} is on {tensor.device}, o1 is on {o.device}; move it with"
                f" {name}.to(o1.device)"
            )
    if (rows := o.shape[:-1].numel()) > MAX_ROWS:
        raise UnsupportedError(
            f"o1 has {rows} rows of one head; allowed are {MAX_ROWS}, merge parts of the batch"
        )
