# SPDX-License-Identifier: Apache-2.0
"""Boxes, words and arrows as an SVG file. The same calls give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

INK, GREY, PAPER = "#1b1f24", "#6e7781", "#ffffff"
COLOURS = ("#9ec5fe", "#ffcf99", "#b7e4c7", "#f5b5c8", "#d7c3f3", "#fff0a3", "#bfe9ef", "#e0d6cc")
SIZE = 14  # of words, where none is given
LETTER = 0.56  # the width of a letter as a share of its size, on average


@dataclass
class Canvas:
    """A picture of a size. Positions count from its upper left corner."""

    width: int
    height: int
    parts: list[str] = field(default_factory=list)
    ends: list[tuple[float, float, float, float]] = field(default_factory=list)  # of what is drawn

    def box(
        self, x: float, y: float, w: float, h: float, fill: str = PAPER, words: str = ""
    ) -> None:
        self._note(x, y, x + w, y + h)
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}"'
            f' stroke="{INK}" stroke-width="1"/>'
        )
        if words:
            self.words(x + w / 2, y + h / 2 + 5, words, anchor="middle")

    def words(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: int = SIZE,
        colour: str = INK, bold: bool = False,
    ) -> None:  # fmt: skip
        """`y` is the line that the letters stand on."""
        wide = LETTER * size * len(text)
        left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        self._note(left, y - size, left + wide, y)
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
            f' fill="{colour}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float, colour: str = INK) -> None:
        self._note(min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y))
        self.parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{colour}"'
            ' stroke-width="1.5" marker-end="url(#head)"/>'
        )

    def svg(self, title: str, told: str) -> str:
        """The file; `told` says in words what the picture shows."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
                f' width="{self.width}" height="{self.height}" role="img"'
                f' aria-label={quoteattr(told)} font-family="Helvetica, Arial, sans-serif">',
                f"<title>{escape(title)}</title>",
                f"<desc>{escape(told)}</desc>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
                f' markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/>'
                "</marker></defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>',
                *self.parts,
                "</svg>\n",
            ]
        )

    def _note(self, left: float, top: float, right: float, bottom: float) -> None:
        self.ends.append((left, top, right, bottom))
