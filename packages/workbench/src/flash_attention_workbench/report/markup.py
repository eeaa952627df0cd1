# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG elements as strings. Whatever is not markup already is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_VOID = {"meta", "input", "br"}


class Markup(str):
    """Text that is markup and must not be escaped again, by templates neither."""

    __slots__ = ()

    def __html__(self) -> Markup:
        return self


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """`<tag attribute="...">children</tag>`; `class_` is class, an underscore a hyphen.

    An attribute that is None is left out; one that is True stands alone.
    """
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{join(children)}</{tag}>")


def join(children: Iterable[object]) -> Markup:
    """The children one after another."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(str(child)) for child in children)
    )


def table(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    left: int = 1,
    class_: str = "",
) -> Markup:
    """A table in a box of its own that scrolls; the first `left` columns are text."""
    names = join(
        element("th", name, scope="col", class_=_column_class(place, left))
        for place, name in enumerate(header)
    )
    body = join(element("tr", *_cells(row, left)) for row in rows)
    inside = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", names)),
        element("tbody", body),
        class_=class_ or None,
    )
    return element("div", inside, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cells(row: Sequence[object], left: int) -> list[Markup]:
    first = element("th", row[0], scope="row")
    return [first] + [
        cell if isinstance(cell, Cell) else element("td", cell, class_=_column_class(place, left))
        for place, cell in enumerate(row[1:], 1)
    ]


def _column_class(place: int, left: int) -> str | None:
    return None if place < left else "number"


class Cell(Markup):
    """A whole `<td>`, for a cell that the table cannot make itself."""

    __slots__ = ()


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    return f" {shown}" if value is True else f' {shown}="{escape(str(value))}"'
