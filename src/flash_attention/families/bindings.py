# SPDX-License-Identifier: Apache-2.0
"""C++ types of `attn/` that every family binds in the same way."""

from __future__ import annotations

from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.compile.binding import Binding, Variant

LENGTHS = ("Lengths", "attn/lengths")
MOST_INT = (1 << 31) - 1
PROGRAM = "Program"  # the C++ type that a program of a user's functions is printed as


def dtype_binding(dtype: DType) -> Variant:
    """Bind the element type."""
    return Variant("DType", "dtype", dtype.to_cpp_str().rsplit("::", 1)[-1])


def lengths_binding(features: Features) -> Variant:
    """Bind the lengths of sequences, and of which numbers of queries a kernel computes some."""
    least, most = features.least_queries, features.most_queries
    if least or most:
        return Variant(*LENGTHS, "Between", f"{least}, {most or MOST_INT}")
    return Variant(*LENGTHS, "PerBatch" if features.per_batch else "Same")


def score_bindings(
    features: Features,
    lengths: str | None = None,
    *,
    listed: bool = False,
    nearest_first: bool = False,
) -> tuple[Binding, ...]:
    """Bind the mask, the score, dropout, a user's function, and the lengths, for which a family may
    have a type. With `listed`, tiles visit the blocks of lists; with `nearest_first`, all blocks in
    the order of NearestFirst."""
    own = lengths_binding(features) if lengths is None else Variant(*LENGTHS, lengths)
    return (
        Variant("Mask", "attn/mask", features.mask.value),
        Variant("Score", "attn/score", "Softcap" if features.softcap else "Plain"),
        own,
        Variant("Dropout", "attn/dropout", "Philox" if features.dropout else "None"),
        _function(features, listed, nearest_first),
    )


def _function(features: Features, listed: bool, nearest_first: bool) -> Variant:
    folder = "attn/user_function"
    if features.program is None:
        return Variant("Function", folder, "None")
    order = ", true" if nearest_first else ""
    return Variant("Function", folder, "Traced", f"{PROGRAM}, {str(listed).lower()}{order}")


def max_score_binding(features: Features) -> Variant:
    """Bind what keeps the largest score of a head, which is that before a softcap."""
    kept = "PerHeadUncapped" if features.softcap else "PerHead"
    return Variant("MaxScore", "attn/max_score", kept if features.max_score else "None")


def shared_bindings(
    features: Features,
    *,
    sinks: bool | None = None,
    lengths: str | None = None,
    listed: bool = False,
    nearest_first: bool = False,
) -> tuple[Binding, ...]:
    """Bind the mask, the score, dropout, the lengths and the sinks."""
    ends_with_sink = features.sinks if sinks is None else sinks
    return (
        *score_bindings(features, lengths, listed=listed, nearest_first=nearest_first),
        Variant("Sinks", "attn/sinks", "PerHead" if ends_with_sink else "None"),
    )
