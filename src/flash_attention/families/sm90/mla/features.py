# SPDX-License-Identifier: Apache-2.0
"""The features of MLA kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import fields

from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS, tile_rows
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig

USUAL_HEADS = 128  # of DeepSeek's models


def resolve(features: Features) -> Sm90Features:
    """Resolve the features. Kernels of every config have all of them. Without a problem, they are
    those of 128 heads."""
    if isinstance(features, Sm90Features):
        return features
    asked = {field.name: getattr(features, field.name) for field in fields(features)}
    return Sm90Features(**asked, heads_together=USUAL_HEADS, few_queries=True)


def features_of(problem: Problem, chunks: Chunks) -> Sm90Features:
    """Return the features of a problem whose keys are in chunks."""
    asked = problem.features
    return Sm90Features(
        *(asked.mask, asked.softcap, asked.per_batch, asked.page_keys, asked.sinks),
        heads_together=chunks.heads_together,
        few_queries=True,
        splits=chunks.splits,
    )


def ctas_of_tile(heads: int) -> int:
    """Count the CTAs that share the rows of a tile, which are all heads of its queries. Each has
    the same number of heads."""
    least = max(-(-heads // WARPGROUP_ROWS), 1)
    return next(count for count in range(least, heads + 2) if heads % count == 0)


def q_box(heads: int) -> tuple[int, int]:
    """Return the heads and queries of a TMA box of q, which holds the rows of a CTA."""
    if heads > WARPGROUP_ROWS:
        return heads // ctas_of_tile(heads), 1
    return heads, WARPGROUP_ROWS // heads


def bindings(config: HopperMlaKernelConfig, features: Sm90Features) -> tuple[Binding, ...]:
    """Return the C++ types and the numbers that the features bind."""
    heads = features.heads_together
    box_heads, box_queries = q_box(heads)
    numbers = {
        "consumers": ctas_of_tile(heads),
        "tile_rows": tile_rows(ctas_of_tile(heads), heads),
        "q_box_heads": box_heads,
        "q_box_queries": box_queries,
        "box_keys": features.box_keys(config.B_c),
    }
    dealt = features.splits is SplitKind.EVEN
    return (
        Variant("TileOrder", "sm90/tile_order", "Dealt" if dealt else "OneEach"),
        Variant("Output", "sm90/output", "Parts" if features.in_parts else "Direct"),
        # What combines partial results adds the sink of a row, so that it is added once.
        *shared_bindings(features, sinks=features.sinks and not features.in_parts),
        features.rows(),
        Variant("Splits", "sm90/splits", features.splits.value),
        features.pages(config.B_c),
        *(Number(name, value) for name, value in numbers.items()),
    )
