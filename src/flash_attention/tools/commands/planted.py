# SPDX-License-Identifier: Apache-2.0
"""What `flash-attention emulate` says of findings and of planted mistakes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from flash_attention.compile import INCLUDE_DIR
from flash_attention.emulator import DeadlockError, Finding
from flash_attention.errors import LaunchError
from flash_attention.tools.commands.console import output, report_table
from flash_attention.tools.mends import DEADLOCK, MENDS
from flash_attention.tools.plants import PLANTS, Plant, shortened

INSTRUCTIONS = "fa/ptx/"


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
        _print_lines([f"  {header}", *(f"  {line}" for line in list(changes)[2:])])


def print_findings(findings: Sequence[Finding], include: Path = INCLUDE_DIR) -> None:
    """The findings of each kind and place in CUDA, those lines, and what usually mends them."""
    colour = "bold red" if findings else "green"
    output.print(f"findings: [{colour}]{len(findings) or 'none'}[/]", highlight=False)
    places: dict[tuple[str, str | None, str | None], list[Finding]] = {}
    for finding in findings:
        places.setdefault((finding.kind, finding.source, finding.other_source), []).append(finding)
    for (_, source, other), found in places.items():
        count = sum(finding.count for finding in found)
        first = replace(found[0], source=None, other_ptx_line=None, count=count)
        at = f", at {len(found)} places in PTX" if len(found) > 1 else ""
        _print_lines([f"  {first}{at}", *_indented(source_lines(source, include))])
        if other:
            _print_lines(["    the other access:", *_indented(source_lines(other, include))])
    print_mends(dict.fromkeys(finding.kind for finding in findings))


def print_stopped(error: LaunchError) -> None:
    """Why a kernel did not come to an end."""
    _print_lines([shortened(str(error))])
    if isinstance(error.__cause__, DeadlockError):
        print_mends([DEADLOCK])


def print_mends(kinds: Iterable[str]) -> None:
    """What usually mends mistakes of these kinds."""
    _print_lines(f"what usually mends it ({kind}): {MENDS[kind]}" for kind in kinds)


def source_lines(source: str | None, include: Path) -> list[str]:
    """The line of CUDA that `source` names and its caller's; of an instruction, its caller's."""
    shown = []
    for place in shortened(source or "").split(", called from "):
        header, _, number = place.rpartition(":")
        if place.startswith("fa/"):
            shown.append(
                f"{place}  {(include / header).read_text().splitlines()[int(number) - 1].strip()}"
            )
    return [line for line in shown if not line.startswith(INSTRUCTIONS)] or shown


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        output.print(line, markup=False, highlight=False, soft_wrap=True)
