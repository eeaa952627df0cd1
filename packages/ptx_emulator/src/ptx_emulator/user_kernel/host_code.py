# SPDX-License-Identifier: Apache-2.0
"""CUDA text without its host code, for a compiler that knows device code alone.

What is left out becomes blanks, so that lines keep their numbers. Nothing is preprocessed:
directives stay, and a macro that stands for `__device__` is known by its definition or its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<directive>\#(?:[^\n\\]|\\.|\\\n)*)
    |(?P<text>R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eEpP][+-]|['\w.])*)
    |(?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\.|\\\n)*)", re.MULTILINE)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__", "__managed__"}
_SPACES = re.compile(r"__(?:global|device|constant|shared|managed)__")
_NAMED_SO = re.compile(r"[A-Z0-9_]*(?:DEVICE|KERNEL)[A-Z0-9_]*")
# What the C++ library says of types, which device code has too
_TRAITS = (
    r"(?:is|has|remove|add|enable)_|conditional|decay|integral_constant|bool_constant|true_type"
    r"|false_type|declval|numeric_limits|same_as|convertible_to|bit_cast|nullptr_t|size_t|u?int\w*_t"
)
_OF_HOST = re.compile(
    rf"\bstd\s*::(?!\s*(?:{_TRAITS}))"
    r"|\bcu(?:da)?[A-Z]\w+\s*\(|\bcuda(?:Error|Event|Stream|DeviceProp|Graph)\w*|<<<"
    r"|\b(?:cout|cerr|endl|fprintf|exit|throw|fopen|FILE|thrust|at|torch)\b"
    r"|\b(?:timeval|timespec|pid_t|pthread_\w+)\b"
)
_TYPES = {"struct", "class", "union", "enum"}
_KEPT = {"using", "namespace", "typedef", "static_assert", "const", "constexpr", *_TYPES}
_ATTRIBUTES = {"alignas", "__align__", "__attribute__", "__declspec", "decltype"}
_ATTRIBUTES |= {"__launch_bounds__", "__cluster_dims__", "__maxnreg__"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NOT_LINES = re.compile(r"[^\n]")


@dataclass
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass
class _Head:
    """What of a declaration was read: its words, and which signs it has."""

    start: int = -1  # nothing of it was read
    words: set[str] = field(default_factory=set)
    called: bool = False
    assigned: bool = False
    quoted: bool = False


def without_host_code(text: str) -> str:
    """The text with host functions, prototypes and variables blanked out."""
    tokens = [
        _Token(match.lastgroup or "", match[0], match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup not in ("skip", "fence")
    ]
    directives = [token for token in tokens if token.kind == "directive"]
    kept = [token for token in tokens if token.kind != "directive"]
    macros = {name for name, body in _DEFINITION.findall(text) if _SPACES.search(body)}
    out = list(text)
    for start, end in _Reader(text, kept, macros | _ON_DEVICE).host_parts():
        out[start:end] = _NOT_LINES.sub(" ", text[start:end])
    for directive in directives:
        out[directive.start : directive.end] = directive.text
    return "".join(out)


class _Reader:
    """Declarations one after the other, in namespaces and in classes."""

    def __init__(self, text: str, tokens: Sequence[_Token], on_device: set[str]) -> None:
        self._text = text
        self._tokens = tokens
        self._on_device = on_device

    def host_parts(self) -> Iterator[tuple[int, int]]:
        """Where host code starts and ends."""
        yield from self._declarations(0, len(self._tokens), in_class=False)

    def _declarations(self, place: int, end: int, in_class: bool) -> Iterator[tuple[int, int]]:
        head = _Head()
        while place < end:
            token = self._tokens[place]
            if head.start < 0:
                head.start = token.start
            after = place + 1
            if token.text == ";":
                if self._is_host(head, token.end, in_class):
                    yield head.start, token.end
                head = _Head()
            elif token.text == "}" or (in_class and token.text == ":" and not head.called):
                head = _Head()  # of a namespace; behind public
            elif token.text == "{" and head.called and self._initialises(place):
                after = self._behind(place)
            elif token.text == "{" and not head.assigned:
                after = self._behind(place)
                if "namespace" in head.words or (head.quoted and not head.called):
                    after = place + 1
                    head = _Head()
                elif head.called:
                    head.words.discard("const")  # of what it returns
                    if self._is_host(head, self._tokens[after - 1].end, in_class):
                        yield head.start, self._tokens[after - 1].end
                    head = _Head()
                elif _TYPES & head.words:
                    yield from self._type(head, place, after, in_class)
                    head.start = self._tokens[after - 1].end
            elif token.text == "template":
                after = self._behind_parameters(after)
            elif token.text in _CLOSING:
                before = self._tokens[place - 1].text if place else ""
                head.called |= token.text == "(" and before not in _ATTRIBUTES
                after = self._behind(place)
                head.words |= {t.text for t in self._tokens[place:after] if t.text in _ON_DEVICE}
            else:
                self._note(head, token)
            place = after

    def _initialises(self, place: int) -> bool:
        """Whether a brace is that of a member which a constructor sets: `: a{1}, b{2}`."""
        sign, name = self._tokens[place - 2], self._tokens[place - 1]
        return name.kind == "word" and sign.text in (":", ",")

    def _note(self, head: _Head, token: _Token) -> None:
        if token.kind == "word":
            head.words.add(token.text)
        head.quoted |= token.kind == "text"
        head.assigned |= token.text == "=" and "operator" not in head.words

    def _type(
        self, head: _Head, place: int, after: int, in_class: bool
    ) -> Iterator[tuple[int, int]]:
        """A class: all of it, where nothing of it is for the device, or those of its members."""
        start, end = self._tokens[place].end, self._tokens[after - 1].start
        inside = self._text[start:end]
        words = {token.text for token in self._tokens[place:after]}
        hostlike = bool(_OF_HOST.search(inside))
        if not hostlike and "__host__" not in words:
            return
        if hostlike and not words & self._on_device and not in_class:
            yield head.start, self._tokens[after - 1].end
            return
        yield from self._declarations(place + 1, after - 1, in_class=True)

    def _is_host(self, head: _Head, end: int, in_class: bool) -> bool:
        """Whether a declaration concerns the host alone."""
        named = any(word in self._on_device or _NAMED_SO.fullmatch(word) for word in head.words)
        if named:
            return False
        hostlike = bool(_OF_HOST.search(self._text, head.start, end))
        if "concept" in head.words:  # of types, which the device has too
            return False
        if "__host__" in head.words or {"using", "namespace", "std"} <= head.words:
            return True
        if in_class or head.words & _KEPT:
            return hostlike
        return bool(head.words)

    def _behind_parameters(self, place: int) -> int:
        """The place behind the parameters of a template, if any are there."""
        depth = 0
        while place < len(self._tokens):
            text = self._tokens[place].text
            if text in _CLOSING:
                place = self._behind(place)
                continue
            depth += {"<": 1, ">": -1}.get(text, 0)
            if depth <= 0 and text != ">":
                return place
            place += 1
            if depth == 0:
                return place
        return place

    def _behind(self, place: int) -> int:
        """The place behind the bracket that closes what opens here."""
        closing = [_CLOSING[self._tokens[place].text]]
        place += 1
        while closing and place < len(self._tokens):
            text = self._tokens[place].text
            if text == closing[-1]:
                closing.pop()
            elif text in _CLOSING:
                closing.append(_CLOSING[text])
            place += 1
        return place
