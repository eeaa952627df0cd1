# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder list`, which does not import torch."""

from __future__ import annotations

from enum import Enum

from flash_attention.families.config import KernelConfig
from flash_attention.ladder import FAMILY, Rung
from flash_attention_workbench.commands.console import output, report_table
from flash_attention_workbench.commands.options import (
    DHeadOption,
    DTypeOption,
    HeadsOption,
    PassOption,
    ladder_of,
    needs,
)


def list_rungs(
    dtype: DTypeOption = "fp16",
    d_head: DHeadOption = 128,
    heads: HeadsOption = 16,
    pass_: PassOption = "forward",
) -> None:
    """Number, name, the one changed field, the GPUs and the idea of every rung."""
    table = report_table("rung")
    for column in ("changes", "needs", "idea"):
        table.add_column(column)
    rungs = ladder_of(dtype, d_head, heads, pass_)
    for before, rung in zip((None, *rungs), rungs, strict=False):
        label, change = f"{rung.number:2} {rung.name}", change_of(before, rung)
        table.add_row(label, change, needs(rung.config), rung.idea)
    output.print(table)


def change_of(before: Rung | None, rung: Rung) -> str:
    """`field: old -> new` of one step up the ladder, empty for the first rung."""
    if before is None or rung.field is None:
        return ""
    return change_between(before.config, rung.config, rung.field)


def change_between(before: KernelConfig, after: KernelConfig, field: str) -> str:
    """`field: old -> new`; a family goes by the architecture it is for."""
    if field == FAMILY:
        return f"{field}: {before.default_arch.name} -> {after.default_arch.name}"
    old, new = (getattr(config, field) for config in (before, after))
    return f"{field}: {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    return value.name if isinstance(value, Enum) else str(value)
