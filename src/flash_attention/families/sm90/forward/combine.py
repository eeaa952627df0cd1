# SPDX-License-Identifier: Apache-2.0
"""The kernel that combines the parts of a row, where the keys were split."""

from __future__ import annotations

from flash_attention.arch import WARP_SIZE
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, render
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.forward_args import PARAMETER, layout_asserts
from flash_attention.families.sm90.forward.features import Sm90Features

THREADS = 128


def combine_unit(dtype: DType, features: Sm90Features, tile_rows: int, target: str) -> Unit:
    """The translation unit for parts whose tiles have so many rows."""
    source = render(
        title=f"parts of {dtype.name} rows become one",
        header="fa/sm90/combine.cuh",
        bindings=(
            dtype_binding(dtype),
            Number("tile_rows", tile_rows),
            Number("warps", THREADS // WARP_SIZE),
            features.rows(),
            Variant("Splits", "sm90/splits", features.splits.value),
        ),
        asserts=layout_asserts(),
        bounds=f"{THREADS}",
        parameters=(PARAMETER,),
        body=("fa::sm90::combine<Config>(args);",),
    )
    together = f"_heads_{features.heads_together}" if features.heads_together > 1 else ""
    name = f"combine_{dtype.name.lower()}_{tile_rows}{together}_{features.splits.name.lower()}"
    return Unit(name, target, source)
