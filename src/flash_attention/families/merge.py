# SPDX-License-Identifier: Apache-2.0
"""The kernel that merges results over the same queries and different keys."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flash_attention.arch import WARP_SIZE
from flash_attention.call.dtype import DType
from flash_attention.call.features import PLAIN
from flash_attention.call.merge_call import MergeCall
from flash_attention.compile.binding import Number, Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.call_args import Strides
from flash_attention.families.merge_args import MergeKernelArgs
from flash_attention.families.recipe import Geometry, Recipe, Step
from flash_attention.families.small_kernels import SmallKernel, small_unit

THREADS = 128
COLUMNS = 4  # of a thread at a time


def merge_recipe(call: MergeCall, tensors: Mapping[str, Tensor], target: str) -> Recipe:
    """Return how the kernel merges parts. `tensors` are its arguments by name."""
    o, merged = call.o, tensors["merged_o"]
    threads = 1
    while threads * COLUMNS < o.shape[-1] and threads < WARP_SIZE:
        threads *= 2
    halves = [t.dtype for t in (o, call.o_rest, merged) if t.dtype != torch.float32]
    dtype = DType.from_string(str(halves[0])) if halves else DType.BF16
    kinds = {"First": o, "Rest": call.o_rest, "Merged": merged}
    names = "_".join(
        "fp32" if t.dtype == torch.float32 else dtype.name.lower() for t in kinds.values()
    )
    unit = small_unit(
        SmallKernel("merge", f"{names}_{threads}"),
        target,
        title="results over parts of the keys become one",
        header="fa/merge/merge.cuh",
        function="fa::merge::merge",
        threads=THREADS,
        bindings=(
            dtype_binding(dtype),
            *(
                Variant(slot, "merge/values", "Floats" if t.dtype == torch.float32 else "Pairs")
                for slot, t in kinds.items()
            ),
            Number("row_threads", threads),
        ),
        arguments=MergeKernelArgs,
    )
    rows = o.shape[:-1].numel()
    ctas = -(-rows * threads // THREADS)
    return Recipe(PLAIN, (Step(unit, Geometry((ctas, 1, 1), THREADS)),), _arguments(call, tensors))


def _arguments(call: MergeCall, tensors: Mapping[str, Tensor]) -> MergeKernelArgs:
    *_, seq_len, heads, columns = call.o.shape
    arguments = MergeKernelArgs(
        o_part_stride=call.o_rest.stride(0),
        lse_part_stride=call.lse_rest.stride(0),
        parts=call.parts(),
        rows=call.o.shape[:-1].numel(),
        seq_len=seq_len,
        heads=heads,
        columns=columns,
    )
    for name, tensor in tensors.items():
        if "lse" in name:
            batch, head, row = (0, *tensor.stride())[-3:]
        else:
            batch, row, head = (0, *tensor.stride()[:-1])[-3:]
        if tensor.ndim - name.endswith("_rest") == (2 if "lse" in name else 3):
            batch = 0  # of packed rows
        setattr(arguments, f"{name}_stride", Strides(batch, row, head))
    return arguments
