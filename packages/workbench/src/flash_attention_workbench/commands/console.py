# SPDX-License-Identifier: Apache-2.0
"""Where the command line prints: tables and progress bars, at a width that suits logs too."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flash_attention.errors import UnsupportedError
from flash_attention.files import check_writable
from flash_attention_workbench.extras import how_to_install
from flash_attention_workbench.text import ReportRow, said_once

_LOG_WIDTH = 150  # columns, where no terminal says how wide it is


def _width(stream: TextIO | None) -> int | None:
    """That of a terminal is known; a stream that the caller closed is None."""
    return None if stream is not None and stream.isatty() else _LOG_WIDTH


output = Console(width=_width(sys.stdout))
errors = Console(stderr=True, width=_width(sys.stderr))


def tell(error: str) -> None:
    """Print an error, unless nobody can be told."""
    with suppress(OSError):
        errors.print("[bold red]error:[/]", end=" ")
        errors.print(error, markup=False, highlight=False, emoji=False)


def report_table(first_column: str, *, title: str = "") -> Table:
    """A table whose first column names its rows and is never broken."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column(first_column, no_wrap=True)
    return table


def add_number_columns(table: Table, names: Iterable[str]) -> None:
    """Right-aligned columns in which the names are broken before a number is."""
    for name in names:
        table.add_column(name, justify="right", overflow="fold", min_width=4)


def print_report(rows: Sequence[ReportRow]) -> None:
    """The names and lines of a report as a table."""
    table = report_table("what")
    table.add_column("", overflow="fold")
    for name, line in said_once(rows):
        table.add_row(name, escape(line))
    output.print(table, highlight=False)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text as they are."""
    for line in lines:
        output.print(line, markup=False, highlight=False, soft_wrap=True)


def progress() -> Progress:
    """A progress bar on standard error, so that standard output stays a report."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
    )


@contextmanager
def json_file(path: Path | None) -> Iterator[Path | None]:
    """The file for what `--json` asks, which can be written. `-` is standard output: what a command
    wrote is printed when it ends, and what it prints meanwhile goes to standard error."""
    if path is not None and str(path) != "-":
        check_writable(path)
    if str(path) != "-":
        yield path
        return
    with TemporaryDirectory() as folder:
        written = Path(folder) / "standard output"
        output.stderr = True
        try:
            yield written
        finally:
            output.stderr = False
            if written.exists():
                print(written.read_text(), end="")


def check_plot(path: Path | None) -> None:
    """A plot that cannot be drawn or written is known before anything is computed."""
    if path is None:
        return
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"--plot draws with {error.name}, which is not installed; {how_to_install('plot')}"
        ) from error
    check_writable(path)


@contextmanager
def quiet_compiles() -> Iterator[None]:
    """Holds back the compiler's line for each compile; the progress bar says as much."""
    logger = logging.getLogger("flash_attention")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
