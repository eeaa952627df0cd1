# SPDX-License-Identifier: Apache-2.0
"""What the emulator found, with the lines of this package's headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from flash_attention.compile import INCLUDE_DIR
from flash_attention.errors import LaunchError
from flash_attention_workbench.commands.console import output
from flash_attention_workbench.mends import MENDS
from flash_attention_workbench.plants import shortened
from ptx_emulator import DeadlockError, Finding
from ptx_emulator.report.findings import Sources, finding_lines, mend_lines
from ptx_emulator.report.mends import DEADLOCK

INSTRUCTIONS = "fa/ptx/"


def sources_in(include: Path = INCLUDE_DIR) -> Sources:
    """How places are named: the lines of headers, or those of a file of one's own.

    Such a file has the instructions of the headers too, so that their callers are shown.
    """
    shown = (0,) if (include / "fa").is_dir() else (0, 1)
    return Sources(shortened, include, INSTRUCTIONS, shown)


def print_findings(findings: Sequence[Finding], sources: Sources) -> None:
    """The findings of each kind and line in CUDA, those lines, and how to fix them."""
    colour = "bold red" if findings else "green"
    output.print(f"findings: [{colour}]{len(findings) or 'none'}[/]", highlight=False)
    print_lines(finding_lines(findings, sources))


def print_stopped(error: LaunchError) -> None:
    """Why a kernel did not come to an end."""
    print_lines([shortened(str(error))])
    if isinstance(error.__cause__, DeadlockError):
        print_mends([DEADLOCK])


def print_mends(kinds: Iterable[str]) -> None:
    """Why mistakes of these kinds are a problem, and how to fix them."""
    print_lines(mend_lines(kinds, MENDS))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        output.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)
