# SPDX-License-Identifier: Apache-2.0
"""The configs and tensors that tests of plans and launches share."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.families.call_args import Strides, fields_of
from flash_attention.families.forward_args import DescaleStrides, ForwardKernelArgs
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(DType.FP16, 64, 2, 128, 2, tma=True, specialised=True)
DYNAMIC = replace(HOPPER, tile_order=TileOrder.DYNAMIC, group_mib=16)
UNIFIED = replace(HOPPER, stages=1, tma=False, specialised=False)
BATCH, SEQ, HEADS, D_HEAD = 2, 128, 3, 64


def call_with(*tensors: Any, **fields: Any) -> Call:
    """A call of q, k, v and perhaps an output, and of what else is asked."""
    return Call(*tensors, **fields)


def packed_slots(count: int = 4) -> list[Tensor]:
    """Tensors of one (batch, seq, slot, heads, d_head) buffer."""
    buffer = torch.zeros(BATCH, SEQ, count, HEADS, D_HEAD, dtype=torch.float16)
    return list(buffer.unbind(2))


def dense(count: int = 4) -> list[Tensor]:
    """Tensors with memory of their own."""
    return [torch.zeros(BATCH, SEQ, HEADS, D_HEAD, dtype=torch.float16) for _ in range(count)]


def grouped(
    seq_q: int = 100, seq_k: int = 77, heads: int = 6, heads_k: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one batch entry, k and v shorter and with fewer heads."""
    q = torch.zeros(1, seq_q, heads, D_HEAD, dtype=torch.float16)
    k = torch.zeros(1, seq_k, heads_k, D_HEAD, dtype=torch.float16)
    return q, k, k.clone()


def values(args: ForwardKernelArgs) -> dict[str, Any]:
    """What the arguments of a kernel hold, by name."""
    fields = {name: getattr(args, name) for name in fields_of(type(args))}
    strides = {
        name: tuple(getattr(value, each) for each, _ in value._fields_)
        for name, value in fields.items()
        if isinstance(value, Strides | DescaleStrides)
    }
    arrays = {
        name: tuple(value) for name, value in fields.items() if isinstance(value, ctypes.Array)
    }
    return fields | strides | arrays
