# SPDX-License-Identifier: Apache-2.0
"""What `flash-attention emulate` says of planted mistakes."""

from __future__ import annotations

import difflib
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from flash_attention.compile import INCLUDE_DIR
from flash_attention_workbench.commands.console import output, report_table
from flash_attention_workbench.commands.findings import print_lines
from flash_attention_workbench.plants import PLANTS, Plant


def plant_table() -> Table:
    """The mistakes that can be planted."""
    table = report_table("plant")
    for column in ("rung", "mistake", "caught by", "output"):
        table.add_column(column)
    for plant in PLANTS:
        result = "right" if plant.silent else "wrong"
        table.add_row(plant.name, str(plant.rung), plant.idea, plant.caught_by, result)
    return table


def print_plant(plant: Plant, include: Path) -> None:
    """The mistake, and the lines of the headers that it changed."""
    output.print(f"[bold]planted: {plant.name}[/], {escape(plant.idea)}", highlight=False)
    for header in dict.fromkeys(f"fa/{edit.header}" for edit in plant.edits):
        before, after = ((folder / header).read_text() for folder in (INCLUDE_DIR, include))
        changes = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
        print_lines([f"  {header}", *(f"  {line}" for line in list(changes)[2:])])
