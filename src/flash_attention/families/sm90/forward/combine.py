# SPDX-License-Identifier: Apache-2.0
"""The combine kernel of split-KV, which merges the partial results of a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flash_attention.arch import WARP_SIZE, Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.config import KernelConfig
from flash_attention.families.forward_args import LAYOUT_ASSERTS, PARAMETER
from flash_attention.families.recipe import Geometry, Step
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind

THREADS = 128
WARPS = THREADS // WARP_SIZE
CHUNK_COLUMNS = 4 * WARP_SIZE  # a lane has four columns of every chunk
ENTRY = "flash_combine_kernel"
_NAME = re.compile(
    r"combine_([a-z0-9]+)_(\d+)(?:_heads_(\d+))?_([a-z]+)(?:_v(\d+))?(_packed)?(_row_in_warp)?"
)
MANY_ROWS = 2048  # so many CTAs of one row each take several turns on an H200
MOST_PARTIALS_OF_WARP = WARP_SIZE  # of a row, a lane for each


@dataclass(frozen=True)
class CombineConfig:
    """What a combine kernel is compiled for, whichever kernel stored the partial results."""

    dtype: DType
    tile_rows: int
    heads_together: int
    splits: SplitKind
    columns: int = CHUNK_COLUMNS  # of O, at most, in whole chunks
    packed: bool = False  # the queries of all sequences follow each other
    row_in_warp: bool = False  # every warp combines a row, and not all warps of a CTA together

    def kernel_name(self) -> str:
        """Return a name for folders, logs and profiles, of letters, digits and underscores."""
        together = f"_heads_{self.heads_together}" if self.heads_together > 1 else ""
        splits = self.splits.name.lower()
        wide = f"_v{self.columns}" if self.columns > CHUNK_COLUMNS else ""
        packed = "_packed" if self.packed else ""
        row_in_warp = "_row_in_warp" if self.row_in_warp else ""
        rows = f"{self.dtype.name.lower()}_{self.tile_rows}{together}"
        return f"combine_{rows}_{splits}{wide}{packed}{row_in_warp}"


def parse_combine_name(name: str) -> CombineConfig | None:
    """Return the config with this `kernel_name()`, or None if it is another kernel's name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    dtype, rows, together, splits, columns, packed, row_in_warp = found.groups()
    return CombineConfig(
        DType.from_string(dtype),
        int(rows),
        int(together or 1),
        SplitKind[splits.upper()],
        int(columns or CHUNK_COLUMNS),
        packed is not None,
        row_in_warp is not None,
    )


def combining(
    config: KernelConfig,
    problem: Problem,
    features: Sm90Features,
    tile_rows: int,
    arch: Arch,
    most_partials: int = MOST_PARTIALS_OF_WARP + 1,
) -> Step:
    """Return the launch that combines partial results of tiles with `tile_rows` rows, of which a
    row has `most_partials` at most."""
    rows = problem.batch * problem.seq_q if problem.total_q is None else problem.total_q
    rows *= problem.heads
    row_in_warp = rows >= MANY_ROWS and most_partials <= MOST_PARTIALS_OF_WARP
    unit = combine_unit(
        *(config.dtype, features, tile_rows, problem.d_v, config.target(arch)),
        packed=problem.total_q is not None,
        row_in_warp=row_in_warp,
    )
    ctas = -(-rows // WARPS) if row_in_warp else rows
    return Step(unit, Geometry((ctas, 1, 1), THREADS), starts_early=True)


@kept
def combine_unit(
    dtype: DType,
    features: Sm90Features,
    tile_rows: int,
    d_v: int,
    target: str,
    *,
    packed: bool = False,
    row_in_warp: bool = False,
) -> Unit:
    """Return the translation unit for partial results of tiles with `tile_rows` rows."""
    columns = -(-d_v // CHUNK_COLUMNS) * CHUNK_COLUMNS
    together, splits = features.heads_together, features.splits
    config = CombineConfig(dtype, tile_rows, together, splits, columns, packed, row_in_warp)
    name = config.kernel_name()
    source = render(
        entry=f"{ENTRY}_{name.removeprefix('combine_')}",
        title=f"parts of {dtype.name} rows become one",
        header="fa/sm90/combine.cuh",
        bindings=(
            dtype_binding(dtype),
            Number("tile_rows", tile_rows),
            Number("columns", columns),
            Number("warps", WARPS),
            Number("row_in_warp", int(row_in_warp)),
            features.rows(),
            Variant("Splits", "sm90/splits", features.splits.value),
            Variant("OutputRow", "sm90/output_row", "Packed" if packed else "InBatch"),
        ),
        asserts=LAYOUT_ASSERTS,
        bounds=f"{THREADS}",
        parameters=(PARAMETER,),
        body=("fa::sm90::combine<Config>(args);",),
    )
    return Unit(name, target, source)
