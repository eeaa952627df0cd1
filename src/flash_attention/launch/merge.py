# SPDX-License-Identifier: Apache-2.0
"""Merges by a kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.call.merge_call import MergeCall
from flash_attention.families.fit import ALIGNMENT
from flash_attention.families.merge import COLUMNS, merge_recipe
from flash_attention.launch.small import run_small


def merge_by_kernel(call: MergeCall, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Merge the parts of a checked call. On a GPU nothing waits for it; on the CPU the emulator
    runs the kernel."""
    columns = call.o.shape[-1]
    call = call._replace(o=_laid_out(call.o), o_rest=_laid_out(call.o_rest))
    o = torch.empty(call.o.shape, dtype=dtype, device=call.o.device)
    lse = torch.empty(call.lse.shape, dtype=torch.float32, device=call.o.device)
    if o.numel():
        tensors = {**call._asdict(), "merged_o": o, "merged_lse": lse}
        of_tensors = tuple((t.shape, t.stride(), t.dtype) for t in tensors.values())
        run_small(
            ("merge", call.o.device, of_tensors),
            call.o.get_device(),
            lambda target: merge_recipe(call, tensors, target),
            tensors,
            ("merged_o", "merged_lse"),
        )
    return o if o.shape[-1] == columns else o[..., :columns], lse


def _laid_out(o: Tensor) -> Tensor:
    """Return the tensor with rows that are read four columns at a time."""
    if missing := -o.shape[-1] % COLUMNS:
        return F.pad(o, (0, missing))
    *strides, last = o.stride()
    step = COLUMNS * o.itemsize
    even = all(s % COLUMNS == 0 for s, n in zip(strides, o.shape, strict=False) if n > 1)
    aligned = o.data_ptr() % min(step, ALIGNMENT) == 0 and even and last == 1
    return o if aligned else o.clone(memory_format=torch.contiguous_format)
