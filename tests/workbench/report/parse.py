# SPDX-License-Identifier: Apache-2.0
"""The elements of a piece of markup, to look at their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Element:
    """A start tag, its attributes, and the text up to its end tag."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[str] = field(default_factory=list)  # classes of the elements around it

    def number(self, name: str) -> float:
        return float(self.attributes[name].removesuffix("%"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Element] = []
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        around = [element.attributes.get("class", "") for element in self._open]
        element = Element(tag, {name: value or "" for name, value in attrs}, inside=around)
        self.found.append(element)
        if tag not in ("meta", "input", "br"):
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def parse(markup: str) -> list[Element]:
    """All elements; an end tag without its start tag is a failure."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    assert reader._open == []
    return reader.found


def having(elements: list[Element], tag: str, class_: str | None = None) -> list[Element]:
    """Those of one tag, and of exactly these classes."""
    return [e for e in elements if e.tag == tag and class_ in (None, e.attributes.get("class"))]
