# SPDX-License-Identifier: Apache-2.0
"""The features of MLA kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import shared_bindings
from flash_attention.families.sm90.forward.config import tile_rows, used_rows
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig

USUAL_HEADS = 128  # of DeepSeek's models
MOST_CTAS = 8  # of a tile


@dataclass(frozen=True)
class MlaFeatures(Sm90Features):
    """The required features, and how the tiles of an MLA kernel implement them."""

    ctas: int = 1  # that share a tile
    packed_queries: bool = False  # the queries of all sequences follow each other

    def words(self) -> list[str]:
        words = {f"ctas_{self.ctas}": self.ctas > 1, "packed_queries": self.packed_queries}
        return [*super().words(), *(word for word, on in words.items() if on)]

    @property
    def q_box(self) -> tuple[int, int]:
        """The heads and queries of a TMA box of q, which holds the rows of a CTA."""
        heads = min(self.heads_together, used_rows(self.heads_together))
        return heads, used_rows(self.heads_together) // heads


def resolve(features: Features) -> MlaFeatures:
    """Resolve the features. Kernels of every config have all of them. Without a problem, they are
    those of one query of 128 heads."""
    if isinstance(features, MlaFeatures):
        return features
    asked = {field.name: getattr(features, field.name) for field in fields(features)}
    usual = {"heads_together": USUAL_HEADS, "decode": True}
    return MlaFeatures(**{**usual, **asked}, ctas=ctas_of_tile(USUAL_HEADS, 1))


def features_of(problem: Problem, kv_splits: KvSplits) -> MlaFeatures:
    """Return the features of a problem whose keys are split so."""
    asked = problem.features
    return MlaFeatures(
        *(asked.mask, asked.softcap, asked.per_batch, asked.page_keys, asked.sinks),
        heads_together=kv_splits.heads_together,
        decode=True,
        splits=kv_splits.kind,
        ctas=ctas_of(problem),
        packed_queries=problem.total_q is not None,
    )


def ctas_of(problem: Problem) -> int:
    """Count the CTAs that share a tile. Where sequences differ in their queries, a tile has room
    for those of the mean one."""
    if problem.total_q is None:
        return ctas_of_tile(problem.heads, problem.seq_q)
    mean = -(-problem.total_q // max(problem.batch, 1))
    return ctas_of_tile(problem.heads, min(mean, problem.seq_q))


def ctas_of_tile(heads: int, queries: int) -> int:
    """Count the CTAs that share a tile: its rows are all heads of all queries of a sequence, or of
    as many as a few CTAs have room for."""
    heads = max(heads, 1)
    rows = used_rows(heads)
    if heads <= rows:
        return min(max(-(-queries * heads // rows), 1), MOST_CTAS)
    of_query = heads // rows
    return of_query * min(max(queries, 1), max(MOST_CTAS // of_query, 1))


def bindings(config: HopperMlaKernelConfig, features: MlaFeatures) -> tuple[Binding, ...]:
    """Return the C++ types and the numbers that the features bind."""
    box_heads, box_queries = features.q_box
    numbers = {
        "consumers": features.ctas,
        "tile_rows": tile_rows(features.ctas, features.heads_together),
        "q_box_heads": box_heads,
        "q_box_queries": box_queries,
        "box_keys": features.box_keys(config.B_c),
    }
    return (
        _tile_order(features),
        Variant("Output", "sm90/output", "Partial" if features.is_split else "Direct"),
        # What combines partial results adds the sink of a row, so that it is added once.
        *shared_bindings(
            features,
            sinks=features.sinks and not features.is_split,
            lengths="PackedQueries" if features.packed_queries else None,
        ),
        features.rows(),
        Variant("Splits", "sm90/splits", features.splits.value),
        features.pages(config.B_c),
        *(Number(name, value) for name, value in numbers.items()),
    )


def _tile_order(features: MlaFeatures) -> Variant:
    order = "StreamK" if features.splits is SplitKind.EVEN else "OneEach"
    if features.packed_queries:
        return Variant("TileOrder", "sm90/split_v/tile_order", f"Packed{order}")
    return Variant("TileOrder", "sm90/tile_order", order)
