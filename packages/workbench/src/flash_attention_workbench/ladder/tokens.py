# SPDX-License-Identifier: Apache-2.0
"""C++ text as tokens, each with the white space that stood before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flash_attention_workbench.ladder.parse import Item

NAME, NUMBER, STRING, COMMENT, DIRECTIVE, MARK, BLOCK = (
    "name", "number", "string", "comment", "directive", "mark", "block",
)  # fmt: skip
NONE, SPACE, NEWLINE = 0, 1, 2  # what stands before a token

CLOSING = {"(": ")", "[": "]", "{": "}"}
_TOKEN = re.compile(
    r"""(?P<gap>\s+)
      | (?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>\.?\d[\w.']*)
      | (?P<mark>::|->|\+\+|--|&&|\|\||<<|\.\.\.|[-=!<>+*/%^|&]=|.)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_SPACE_AFTER, _NO_SPACE_BEFORE = {"(", "[", "!", "~"}, {")", "]", ";", ","}


@dataclass(frozen=True)
class Token:
    """One token; a BLOCK is the body of a lambda, already parsed."""

    kind: str
    text: str
    gap: int = NONE
    body: tuple[Item, ...] = ()

    @property
    def words(self) -> list[str]:
        """The names in it, of which only a directive has several."""
        if self.kind == DIRECTIVE:
            return _WORD.findall(self.text)
        return [self.text] if self.kind == NAME else []


Tokens = Sequence[Token]


def lex(text: str) -> list[Token]:
    """The tokens of `text`; nothing but white space is left out."""
    tokens: list[Token] = []
    gap = NONE
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or MARK
        if kind == "gap":
            gap = NEWLINE if "\n" in match.group() else SPACE
        else:
            tokens.append(Token(kind, match.group(), gap))
            gap = NONE
    return tokens


def closing(tokens: Tokens, start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    opened = tokens[start].text
    depth = 0
    for index in range(start, len(tokens)):
        if tokens[index].kind == MARK:
            depth += (tokens[index].text == opened) - (tokens[index].text == CLOSING[opened])
            if depth == 0:
                return index
    raise ValueError(f"no {CLOSING[opened]} closes {text_of(tokens[start : start + 8])!r}")


def opening(tokens: Tokens, end: int) -> int:
    """The index of the `(` or `<` that the bracket at `end` closes."""
    closed = tokens[end].text
    opened = {")": "(", ">": "<", "]": "["}[closed]
    depth = 0
    for index in range(end, -1, -1):
        depth += (tokens[index].text == closed) - (tokens[index].text == opened)
        if depth == 0:
            return index
    return 0


def after_angles(tokens: Tokens, start: int) -> int:
    """The index behind the template arguments or parameters that open at `start`."""
    depth, index = 0, start
    while index < len(tokens):
        text = tokens[index].text
        if tokens[index].kind == MARK and text in CLOSING:
            index = closing(tokens, index)
        depth += (text == "<") - (text == ">")
        index += 1
        if depth == 0:
            break
    return index


def after_templates(tokens: Tokens) -> int:
    """The index behind the `template <...>` that a declaration starts with."""
    index = 0
    while index + 1 < len(tokens) and tokens[index].text == "template":
        index = after_angles(tokens, index + 1)
    return index


def split_at(tokens: Tokens, marks: set[str]) -> list[list[Token]]:
    """The parts between those of `marks` that stand in no brackets."""
    if marks.isdisjoint(token.text for token in tokens):
        return [list(tokens)]
    parts: list[list[Token]] = [[]]
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == MARK and token.text in CLOSING:
            end = closing(tokens, index)
            parts[-1] += tokens[index : end + 1]
            index = end
        elif token.kind == MARK and token.text in marks:
            parts.append([])
        else:
            parts[-1].append(token)
        index += 1
    return parts


def text_of(tokens: Tokens) -> str:
    """The tokens on one line, the bodies of lambdas left out."""
    parts: list[str] = []
    before = ""
    for token in tokens:
        glued = before in _NO_SPACE_AFTER or token.text in _NO_SPACE_BEFORE
        if parts and (token.gap == SPACE or (token.gap == NEWLINE and not glued)):
            parts.append(" ")
        parts.append(token.text)
        before = token.text
    return "".join(parts)


def spaced(tokens: Tokens, gap: int) -> list[Token]:
    """The same tokens with another gap before the first."""
    return [replace(tokens[0], gap=gap), *tokens[1:]] if tokens else []
