# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(
    heading: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> Iterator[str]:
    """The lines of a table. Columns from `numbers_from` on are aligned at their right."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    first = len(widths) if numbers_from is None else numbers_from
    for row in (heading, *rows):
        cells = (
            cell.ljust(width) if column < first else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
