# SPDX-License-Identifier: Apache-2.0
"""The tensor maps of an FP8 kernel: the boxes of q and k, and of a v that is given transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention.call.tensors import TensorView
from flash_attention.families.recipe import MapDescription
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.tensor_maps import WIDE_PROMOTION, describe
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig


def describe_all(
    config: HopperFp8KernelConfig, views: Sequence[TensorView], page_keys: int
) -> dict[str, MapDescription]:
    """Describe the tensors that TMA loads. Boxes hold a warpgroup's rows of q, and a key block
    or what a page has of it.

    If v is given transposed, the even keys of a block are loaded first, then the odd ones, and the
    columns of v likewise.
    """
    q, k, v, _ = views
    panel = config.panel_columns
    of_q = describe(q, (panel, 1, WARPGROUP_ROWS), WIDE_PROMOTION)
    keys = (panel, 1, config.box_keys(page_keys))
    if not config.values_transposed:
        return {"q": of_q, "k": describe(k, keys, WIDE_PROMOTION)}
    columns = (config.panel_keys, 1, config.d_head)
    return {
        "q": of_q,
        "k": describe(k, keys, WIDE_PROMOTION, every=2),
        "v": describe(_by_columns(v), columns, WIDE_PROMOTION, every=2),
    }


def _by_columns(view: TensorView) -> TensorView:
    """Exchange the keys and the columns of a (batch, seq, heads, d) view."""
    order = (0, 3, 2, 1)
    shape, strides = (tuple(of[i] for i in order) for of in (view.shape, view.strides))
    return replace(view, shape=shape, strides=strides)
