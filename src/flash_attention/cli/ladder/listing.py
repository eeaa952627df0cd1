# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder list`."""

from __future__ import annotations

from flash_attention.cli.console import output, report_table
from flash_attention.cli.options import DHeadOption, DTypeOption, HeadsOption, ladder_of
from flash_attention.ladder import Rung


def list_rungs(
    dtype: DTypeOption = "fp16", d_head: DHeadOption = 128, heads: HeadsOption = 16
) -> None:
    """Number, name, the one changed field and the idea of every rung."""
    table = report_table("rung")
    for column in ("changes", "idea"):
        table.add_column(column)
    rungs = ladder_of(dtype, d_head, heads)
    for before, rung in zip((None, *rungs), rungs, strict=False):
        table.add_row(f"{rung.number:2} {rung.name}", change_of(before, rung), rung.idea)
    output.print(table)


def change_of(before: Rung | None, rung: Rung) -> str:
    """`field: old -> new` of one step up the ladder, empty for the first rung."""
    if before is None or rung.field is None:
        return ""
    old, new = getattr(before.config, rung.field), getattr(rung.config, rung.field)
    return f"{rung.field}: {old} -> {new}"
