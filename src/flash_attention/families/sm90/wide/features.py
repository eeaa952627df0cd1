# SPDX-License-Identifier: Apache-2.0
"""The features of kernels for wide heads, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import fields

from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.sm90.forward.config import tile_rows
from flash_attention.families.sm90.forward.features import Sm90Features, Walk
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig

GROUP_MIB = 32  # of K and V that the tiles of a group of heads keep in L2


def resolve(features: Features) -> Sm90Features:
    """Resolve the features. Kernels of every config have all of them."""
    if isinstance(features, Sm90Features):
        return features
    return Sm90Features(**{field.name: getattr(features, field.name) for field in fields(features)})


def features_of(problem: Problem, kv_splits: KvSplits | None) -> Sm90Features:
    """Return the features of a problem, whose keys may be split."""
    asked = problem.features
    given = (asked.mask, asked.softcap, asked.per_batch, asked.page_keys, asked.sinks)
    if kv_splits is None:
        return Sm90Features(*given)
    return Sm90Features(
        *given,
        heads_together=kv_splits.heads_together,
        decode=True,
        splits=kv_splits.kind,
    )


def walk_of(features: Sm90Features) -> Walk:
    """Return the order in which tiles are computed: the longest first, where they may differ."""
    return features.walk(TileOrder.DYNAMIC)


def bindings(config: HopperWideKernelConfig, features: Sm90Features) -> tuple[Binding, ...]:
    """Return the C++ types and the numbers that the features bind."""
    box_heads, box_queries = features.q_box
    numbers = {
        "consumers": 1,  # two warpgroups, which share the rows of one
        "group_mib": GROUP_MIB,
        "tile_rows": tile_rows(1, features.heads_together),
        "q_box_heads": box_heads,
        "q_box_queries": box_queries,
        "box_keys": features.box_keys(config.B_c),
    }
    return (
        Variant("TileOrder", "sm90/tile_order", walk_of(features).value),
        Variant("Output", "sm90/output", "Partial" if features.is_split else "Direct"),
        # What combines partial results adds the sink of a row, so that it is added once.
        *shared_bindings(features, sinks=features.sinks and not features.is_split),
        features.rows(),
        Variant("Splits", "sm90/splits", features.splits.value),
        features.pages(config.B_c),
        *(Number(name, value) for name, value in numbers.items()),
    )
