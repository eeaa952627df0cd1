# SPDX-License-Identifier: Apache-2.0
"""A captured tensor that a score function reads at the query and the key as they are, such as a
bias. The copy engine can load a block of it where it lies in memory as tensor maps need it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from flash_attention.program.derivative import differentiate
from flash_attention.program.nodes import Program, needed
from flash_attention.program.reads import is_uniform
from flash_attention.program.trace import Traced

ELEMENTS = (torch.float16, torch.bfloat16)
MOST_DIMS = 4  # of the tensor
ALIGNMENT = 16  # bytes, of the first element and of strides
MAX_STRIDE_BYTES = 1 << 40  # tensor maps have smaller strides


class Bias(NamedTuple):
    """Where a captured tensor lies in memory. Its last two dimensions are queries and keys."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def covers(self, queries: int, keys: int) -> bool:
        """Whether it has an element for every query and key."""
        return self.shape[-2] >= queries and self.shape[-1] >= keys


def bias_load(program: Program) -> int | None:
    """The first read of a tensor of 16-bit floats at [..., query, key] that changed scores need.
    Other indices depend on the batch and the head alone."""
    for index in sorted(needed(program.nodes, [program.score])):
        node = program.nodes[index]
        if node.op != "load" or not 2 <= len(node.inputs) <= MOST_DIMS:
            continue
        at = tuple(program.nodes[each].op for each in node.inputs[-2:])
        is_plane = all(is_uniform(program, each) for each in node.inputs[:-2])
        dtype = program.tensors[int(node.detail or 0)].dtype
        if at == ("query", "key") and is_plane and dtype in ELEMENTS:
            return index
    return None


@cache
def has_no_other_places(program: Program) -> bool:
    """Whether changed scores depend on the query and the key by what `bias_load` finds alone."""
    load, waiting = bias_load(program), [program.score]
    while waiting:
        index = waiting.pop()
        if index is None or index == load:
            continue
        if program.nodes[index].op in ("query", "key"):
            return False
        waiting += program.nodes[index].inputs
    return True


@cache
def only_scores_read_bias(program: Program) -> bool:
    """Whether neither the mask nor a gradient that is wanted needs what `bias_load` finds, which a
    backward pass has no more when it computes them."""
    found, slots = differentiate(program), {slot for slot, _ in program.gathered}
    gradients = [load.value for load in found.loads if load.slot in slots]
    return bias_load(program) not in needed(found.program.nodes, [program.mask, *gradients])


@cache
def tile_slot(program: Program) -> int | None:
    """The tensor of what `bias_load` finds, if its gradient is dS as products read it: the score
    and the element are added without factors, and nothing else reads the tensor."""
    load = bias_load(program)
    if load is None:
        return None
    found, slot = differentiate(program), int(program.nodes[load].detail or 0)
    own = [each for each in found.loads if each.slot == slot]
    factors = [found.program.nodes[n] for n in (found.slope, *(each.value for each in own))]
    has_no_factors = all(node.op == "literal" and node.detail == "1.0" for node in factors)
    return slot if has_no_factors and len(own) == 1 else None


def bias_of(traced: Traced, load: int) -> Bias | None:
    """Where the tensor of a `load` lies, or None if a tensor map cannot describe it."""
    slot = int(traced.program.nodes[load].detail or 0)
    tensor = traced.tensors[slot]
    *planes, rows = (_is_usable(tensor, dim) for dim in range(tensor.ndim - 1))
    shared = [stride == 0 for stride in tensor.stride()[:-2]]
    usable = rows and all(own or same for own, same in zip(planes, shared, strict=True))
    if not usable or tensor.stride(-1) != 1 or _address(tensor) % ALIGNMENT:
        return None
    return Bias(slot, tuple(tensor.shape), tensor.stride())


def aligned_keys(keys: int) -> int:
    """The least number of 16-bit elements that a row of a contiguous tensor with a tensor map can
    have for so many keys. The copy engine stores no less than 16 bytes of a row."""
    elements = ALIGNMENT // 2
    return -(-keys // elements) * elements


def _is_usable(tensor: Tensor, dim: int) -> bool:
    """Whether a tensor map can have the stride, which does not matter if the size is 1."""
    stride = tensor.stride(dim) * tensor.element_size()
    fits = 0 < stride < MAX_STRIDE_BYTES and stride % ALIGNMENT == 0
    return fits or tensor.shape[dim] == 1


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a tensor without memory, which stands for one while torch traces
        return 0
