# SPDX-License-Identifier: Apache-2.0
"""Findings for people: what happened, at which two lines, why that is a problem, what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from flash_attention.compile import INCLUDE_DIR
from flash_attention.emulator import DeadlockError, Finding
from flash_attention.errors import LaunchError
from flash_attention.tools.commands.console import output
from flash_attention.tools.mends import DEADLOCK, MENDS, PROBLEMS
from flash_attention.tools.plants import shortened

INSTRUCTIONS = "fa/ptx/"


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
        print_lines([f"  {first}{at}", *_indented(source_lines(source, include))])
        if other:
            print_lines(["    the other access:", *_indented(source_lines(other, include))])
    print_mends(dict.fromkeys(finding.kind for finding in findings))


def print_stopped(error: LaunchError) -> None:
    """Why a kernel did not come to an end."""
    print_lines([shortened(str(error))])
    if isinstance(error.__cause__, DeadlockError):
        print_mends([DEADLOCK])


def print_mends(kinds: Iterable[str]) -> None:
    """Why mistakes of these kinds are a problem, and what usually mends them."""
    for kind in kinds:
        if kind in PROBLEMS:
            print_lines([f"why it is a problem ({kind}): {PROBLEMS[kind]}"])
        print_lines([f"what usually mends it ({kind}): {MENDS[kind]}"])


def source_lines(source: str | None, include: Path) -> list[str]:
    """The line of CUDA that `source` names and its caller's; of an instruction, its caller's."""
    shown = []
    for place in shortened(source or "").split(", called from "):
        name, _, number = place.rpartition(":")
        path = include / name if place.startswith("fa/") else Path(name)
        if number.isdecimal() and path.is_file():
            lines = path.read_text(errors="replace").splitlines()
            shown.append(f"{place}  {lines[int(number) - 1].strip()}")
    return [line for line in shown if not line.startswith(INSTRUCTIONS)] or shown


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        output.print(line, markup=False, highlight=False, soft_wrap=True)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
