# SPDX-License-Identifier: Apache-2.0
"""Marked blocks of a document, which are rendered from results and never typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flash_attention.errors import UnsupportedError


def begin(name: str) -> str:
    return f"<!-- {name}:begin -->"


def end(name: str) -> str:
    return f"<!-- {name}:end -->"


def wrap(name: str, lines: Iterable[str]) -> str:
    """`lines` between the markers of `name`."""
    return "\n".join((begin(name), *lines, end(name)))


def marked_block(text: str, name: str) -> str:
    """The block as it stands in `text`, markers included."""
    _, opening, rest = text.partition(begin(name))
    inside, closing, _ = rest.partition(end(name))
    if not opening or not closing:
        raise UnsupportedError(f"no {begin(name)} ... {end(name)} block to write into")
    return opening + inside + closing


def replace_block(text: str, name: str, new_block: str) -> str:
    """`text` with its marked block replaced by `new_block`."""
    return text.replace(marked_block(text, name), new_block)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    """A Markdown table whose first `left` columns are text and the others numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
