# SPDX-License-Identifier: Apache-2.0
"""The tensor maps of a Hopper kernel: which boxes TMA moves of q, k, v and o."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.call.tensors import DIMS, TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.features import Sm90Features

MAX_STRIDE_BYTES = 1 << 40  # TMA's own limit; strides are below it
WIDE_PROMOTION = 256  # bytes of L2 that one load brings in


def describe(view: TensorView, box: tuple[int, int, int], promotion: int = 0) -> MapDescription:
    """A (batch, seq, heads, d) tensor, moved in boxes of so many columns, heads and rows; where a
    box reaches beyond the tensor, zeros are loaded and nothing is stored."""
    batch, seq, heads, d_head = view.shape
    size = view.dtype.itemsize
    strides = []
    for dim in (2, 1, 0):
        # Of a dimension of one entry torch may report any stride, and TMA uses none.
        stride = size * (view.strides[dim] if view.shape[dim] > 1 else d_head)
        if stride >= MAX_STRIDE_BYTES:
            raise UnsupportedError(
                f"the {DIMS[dim]} stride of {view.name} is {stride} bytes; TMA takes less than"
                f" {MAX_STRIDE_BYTES}: copy it with {view.name}.contiguous(), or pass a config"
                " with tma=False"
            )
        strides.append(stride)
    return MapDescription(
        dims=(d_head, heads, seq, batch),
        strides=tuple(strides),
        box=(*box, 1),
        swizzle=box[0] * size,
        dtype=view.dtype,
        promotion=promotion,
    )


def describe_all(
    config: HopperForwardKernelConfig, views: Sequence[TensorView], features: Sm90Features
) -> dict[str, MapDescription]:
    """Of q, k, v and o: a warpgroup's rows of q, a block of keys of k and v, a warp's rows of o.

    A box is one panel of the kernel's shared tiles wide. Rows of q may be of several heads; no box
    of keys is larger than a page.
    """
    panel = config.panel_columns
    keys = (panel, 1, features.box_keys(config.B_c))
    boxes = ((panel, *features.q_box), keys, keys, (panel, *features.o_box))
    once = 0 if features.short_queries else WIDE_PROMOTION  # 2 to 5 % in decoding at 4.3 TB/s
    promotions = (WIDE_PROMOTION, once, once, 0)
    return dict(zip("qkvo", map(describe, views, boxes, promotions), strict=True))
