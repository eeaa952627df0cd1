# SPDX-License-Identifier: Apache-2.0
"""The text of a PTX module, and the place in it that is being read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ptx_emulator.errors import quoted

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FILE = re.compile(r'^[ \t]*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
_BLANK = re.compile(r"\s*")
_BRACE = re.compile(r'[{}]|"[^"\n]*"')


class Text:
    """PTX without its comments; `line` is the line of the item being read."""

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_without_comment, text)
        self.line = 1
        self._counted = 0
        self.files = {
            int(number): f"{first}/{second}" if second else first
            for number, first, second in _FILE.findall(self.text)
        }
        target = _TARGET.search(self.text)
        self.target = target[1] if target else ""

    def skip_blanks(self, position: int) -> int:
        """The next position that holds something; `line` becomes the line of that position."""
        found = _BLANK.match(self.text, position)
        place = found.end() if found else position
        self.line += self.text.count("\n", self._counted, place)
        self._counted = place
        return place

    @contextmanager
    def elsewhere(self, position: int, line: int) -> Iterator[None]:
        """Read at another position, whose line is known, and come back."""
        here = self._counted, self.line
        self._counted, self.line = position, line
        try:
            yield
        finally:
            self._counted, self.line = here

    def line_from(self, position: int) -> str:
        """The rest of the line, to stand in an error."""
        return quoted(self.text[position:].partition("\n")[0])

    def end_of_braces(self, position: int) -> int | None:
        """The position after the brace that closes what is open at `position`, if one does."""
        depth = 1
        while depth:
            brace = _BRACE.search(self.text, position)
            if brace is None:
                return None
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            position = brace.end()
        return position


def _without_comment(match: re.Match[str]) -> str:
    found = match[0]
    return found if found[0] == '"' else " " + "\n" * found.count("\n")
