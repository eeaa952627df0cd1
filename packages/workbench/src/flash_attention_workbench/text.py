# SPDX-License-Identifier: Apache-2.0
"""Text layout that reports on a call share."""

from __future__ import annotations

from collections.abc import Sequence

ReportRow = tuple[str, str]
"""A name and a line. Consecutive rows with one name belong together."""


def aligned(rows: Sequence[ReportRow]) -> str:
    """Format rows in two columns: names, each once, and lines."""
    width = max(len(name) for name, _ in rows) + 1
    return "\n".join(f"{name:<{width}}{line}" for name, line in said_once(rows))


def said_once(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Return the rows with repeated names left out."""
    before = ["", *(name for name, _ in rows)]
    return [
        ("" if name == last else name, line)
        for (name, line), last in zip(rows, before, strict=False)
    ]
