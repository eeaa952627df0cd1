# SPDX-License-Identifier: Apache-2.0
"""The tensor maps of a Hopper kernel: the boxes of q, k, v and o that TMA moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import DIMS, MAX_ROWS, TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import ALIGNMENT
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.features import GROUP_KEYS, Sm90Features

MAX_STRIDE_BYTES = 1 << 40  # TMA needs smaller strides
WIDE_PROMOTION = 256  # bytes that one load brings into L2
PROMOTION = 128  # for rows that are no multiple of 64 bytes; 256 are up to 16 % slower there


def describe(
    view: TensorView,
    box: tuple[int, int, int],
    promotion: int = 0,
    *,
    swizzled: bool = True,
    every: int = 1,
) -> MapDescription:
    """Describe a (batch, seq, heads, d) tensor with a box of columns, heads and rows, of which it
    has every `every`-th. Where a box extends beyond the tensor, TMA loads zeros and stores
    nothing."""
    batch, seq, heads, d_head = view.shape
    size = view.dtype.itemsize
    strides = []
    for dim in (2, 1, 0):
        stride = size * view.strides[dim]
        usable = 0 < stride < MAX_STRIDE_BYTES and stride % ALIGNMENT == 0
        if view.shape[dim] == 1 and not usable:
            # torch may report any stride for a dimension of size 1, and TMA does not use it.
            stride = -(-d_head * size // ALIGNMENT) * ALIGNMENT
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
        swizzle=box[0] * size if swizzled else 0,
        dtype=view.dtype,
        promotion=promotion,
        steps=(1, 1, every, 1),
    )


def loads_whole_rows(config: HopperForwardKernelConfig, problem: Problem) -> bool:
    """Whether a box of a page can have all columns of its keys: these fill the panels of a tile,
    of which there are several, and the keys of a box are whole groups."""
    fills = problem.d_head == problem.d_v == config.held_columns > config.panel_columns
    groups = gcd(problem.page_keys, config.B_c) % GROUP_KEYS == 0
    return (
        problem.page_keys > 0 and problem.aligned_heads and fills and groups and not config.kv_8_bit
    )


def _describe_rows(view: TensorView, columns: int, keys: int, promotion: int) -> MapDescription:
    """Describe pages of (pages, page_size, heads, d) with a box of `keys` keys of one head. It has
    groups of eight keys, each with all panels of `columns` columns, which follow each other in a
    grouped tile. The panels of all heads are one dimension."""
    pages, page_keys, heads, d_head = view.shape
    size = view.dtype.itemsize
    of_key = size * view.strides[1]
    # torch may report any stride for a dimension of size 1, and TMA does not use it.
    of_page = size * view.strides[0] if pages > 1 else page_keys * of_key
    last_head = (heads - 1) * view.strides[2] if heads > 1 else 0
    return MapDescription(
        dims=(columns, GROUP_KEYS, (last_head + d_head) // columns, page_keys // GROUP_KEYS, pages),
        strides=(of_key, columns * size, GROUP_KEYS * of_key, of_page),
        box=(columns, GROUP_KEYS, d_head // columns, keys // GROUP_KEYS, 1),
        swizzle=columns * size,
        dtype=view.dtype,
        promotion=promotion,
    )


def of_all_lengths(description: MapDescription) -> MapDescription:
    """Return the map of a packed o, whose rows need no bound: a kernel stores boxes inside of a
    sequence alone, because the next one follows."""
    dims = (*description.dims[:2], MAX_ROWS, 1)
    return replace(description, dims=dims, of_all_lengths=True)


def describe_all(
    config: HopperForwardKernelConfig, views: Sequence[TensorView], features: Sm90Features
) -> dict[str, MapDescription]:
    """Describe q, k, v and o. Boxes hold a warpgroup's rows of q, a key block, a warp's rows of o.

    A box is as wide as a panel of a shared-memory tile; if keys are converted, it has whole rows.
    Rows of q may belong to several heads. A box of keys is not larger than a page.
    """
    panel = config.panel_columns
    q, k, v, o = views
    keys = (config.box_columns, 1, features.box_keys(config.B_c))
    promotion = PROMOTION if q.shape[-1] % 32 or v.shape[-1] % 32 else WIDE_PROMOTION
    once = 0 if features.is_decode else promotion  # saves 2 to 5 % in decoding

    def describe_keys(view: TensorView) -> MapDescription:
        if features.whole_rows:
            return _describe_rows(view, panel, keys[2], once)
        swizzled = config.scores_8_bit or not config.kv_8_bit
        return describe(view, keys, once, swizzled=swizzled)

    q_columns = config.box_columns if config.scores_8_bit else panel
    return {
        "q": describe(q, (q_columns, *features.q_box), promotion),
        "k": describe_keys(k),
        "v": describe_keys(v),
        "o": describe(o, (panel, *features.o_box)),
    }
