# SPDX-License-Identifier: Apache-2.0
"""Headers as trees: declarations in namespaces and classes, statements in functions.

It knows the C++ that the headers of this package are written in, not all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.ladder.tokens import (
    BLOCK,
    CLOSING,
    COMMENT,
    DIRECTIVE,
    MARK,
    NAME,
    NEWLINE,
    Token,
    Tokens,
    after_templates,
    closing,
    lex,
    opening,
    split_at,
)

CLASS, FUNCTION, VARIABLE, USING, ENUM, MACRO, OTHER = (
    "class", "function", "variable", "using", "enum", "macro", "other",
)  # fmt: skip
STATEMENTS = SIMPLE, CONTROL, COMPOUND = "simple", "control", "compound"

_CLASS_KEYS = {"struct", "class", "union"}
_ACCESS = {"public", "private", "protected"}
_CONTROL = {"if", "for", "while", "switch", "else", "do"}
ATTRIBUTES = {"__launch_bounds__", "__align__", "alignas"}
_SKIPPED = ("#pragma once", "#include")


@dataclass(eq=False)
class Item:
    """A declaration or a statement, with the comments that belong to it.

    `head` is all of it up to the braces of its `body`, `tail` what follows them.
    """

    kind: str
    head: list[Token]
    body: list[Item] | None = None
    tail: list[Token] = field(default_factory=list)
    braces: bool = True
    about: list[str] = field(default_factory=list)  # what its header says of itself
    lead: list[str] = field(default_factory=list)  # comment lines above it
    note: str = ""  # a comment behind its opening brace
    trail: str = ""  # a comment behind it
    pragmas: list[str] = field(default_factory=list)
    path: tuple[str, ...] = ()  # the namespaces around it
    source: str = ""  # the header it is from
    names: tuple[str, ...] = ()
    owner: Item | None = None  # the class or function around it

    @property
    def word(self) -> str:
        """The keyword of a control statement."""
        return self.head[0].text if self.head else ""

    @property
    def is_field(self) -> bool:
        """A data member that every object of its class has."""
        return self.kind == VARIABLE and all(token.text != "static" for token in self.head)

    @property
    def is_using_declaration(self) -> bool:
        """`using attn::Name;`, which says nothing where all names are in one namespace."""
        return self.kind == USING and all(token.text != "=" for token in self.head)

    @property
    def template_parameters(self) -> list[str]:
        """The names of its template parameters."""
        parts = split_at(self.head[2 : max(2, after_templates(self.head) - 1)], {","})
        return [split_at(part, {"="})[0][-1].text for part in parts if part]


def parse_file(text: str, source: str) -> list[Item]:
    """The declarations of a header, those in all its namespaces."""
    parser = _Parser(lex(text), source)
    about = parser.comments()
    items = parser.declarations((), None)
    for item in items:
        item.about = about
    return items


class _Parser:
    def __init__(self, tokens: list[Token], source: str) -> None:
        self.tokens, self.source, self.at = tokens, source, 0

    # what is next

    @property
    def here(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def comments(self) -> list[str]:
        lines: list[str] = []
        while self.here and (
            self.here.kind == COMMENT
            or (self.here.kind == DIRECTIVE and self.here.text.strip().startswith(_SKIPPED))
        ):
            if self.here.kind == COMMENT and "SPDX" not in self.here.text:
                lines.append(self.here.text)
            self.at += 1
        return lines

    def comment_on_this_line(self) -> str:
        if self.here and self.here.kind == COMMENT and self.here.gap < NEWLINE:
            self.at += 1
            return self.tokens[self.at - 1].text
        return ""

    # declarations

    def declarations(self, path: tuple[str, ...], owner: Item | None) -> list[Item]:
        items: list[Item] = []
        lead: list[str] = []
        while True:
            lead += self.comments()
            token = self.here
            if token is None or token.text == "}":
                return items
            if token.text == ";":
                self.at += 1
            elif token.text == "namespace":
                items += self.namespace(path)
                lead = []
            elif token.text in _ACCESS and self.tokens[self.at + 1].text == ":":
                self.at += 2
            else:
                item = self.declaration(owner)
                item.path, item.source, item.owner = path, self.source, owner
                item.lead, lead = lead, []
                item.names = _names(item)
                if item.kind == CLASS:
                    item.path += tuple(_class_chain(item.head[after_templates(item.head) :])[:-1])
                items.append(item)

    def namespace(self, path: tuple[str, ...]) -> list[Item]:
        start = self.at
        while self.tokens[self.at].text != "{":
            self.at += 1
        names = [token.text for token in self.tokens[start + 1 : self.at] if token.kind == NAME]
        self.at += 1
        self.comment_on_this_line()
        items = self.declarations((*path, *names), None)
        self.at += 1
        self.comment_on_this_line()
        return items

    def declaration(self, owner: Item | None) -> Item:
        if (token := self.tokens[self.at]).kind == DIRECTIVE:
            self.at += 1
            return Item(MACRO, [token])
        item = Item(OTHER, [])
        first = self.at + after_templates(self.tokens[self.at :])
        if token.text == "enum":
            return self.enumeration(item)
        is_class = parameters = initialisers = value = False
        while (token := self.tokens[self.at]).text != ";":
            before = item.head[-1].text if item.head else ""
            is_class |= token.text in _CLASS_KEYS and self.at >= first and not parameters
            value |= token.text == "=" and self.at >= first
            initialisers |= token.text == ":" and parameters
            if token.text == "{" and not value:
                is_body = before in {")", "}"} or not initialisers
                if is_class or (parameters and is_body):
                    return self.with_body(item, CLASS if is_class else FUNCTION)
            if self.at >= first and token.text == "(" and before not in ATTRIBUTES:
                parameters = parameters or not value
            self.take_bracketed(item.head)
        self.take_bracketed(item.head)
        item.kind = CLASS if is_class else FUNCTION if parameters else _plain_kind(item.head)
        item.trail = self.comment_on_this_line()
        return item

    def enumeration(self, item: Item) -> Item:
        """An enum, each of its values an item of its own."""
        while self.tokens[self.at].text != "{":
            self.take(item.head)
        self.at += 1
        item.kind, item.body = ENUM, []
        while self.tokens[self.at].text != "}":
            value = Item(SIMPLE, [], lead=self.comments(), owner=item)
            while self.tokens[self.at].text not in {",", "}"}:
                self.take_bracketed(value.head)
            if self.tokens[self.at].text == ",":
                self.take(value.head)
            value.trail = self.comment_on_this_line()
            item.body.append(value)
        self.at += 1
        self.take(item.tail)
        return item

    def with_body(self, item: Item, kind: str) -> Item:
        item.kind = kind
        self.at += 1
        item.note = self.comment_on_this_line()
        item.body = self.declarations((), item) if kind == CLASS else self.statements(item)
        self.at += 1
        while kind == CLASS and not (item.tail and item.tail[-1].text == ";"):
            self.take_bracketed(item.tail)
        item.trail = self.comment_on_this_line()
        return item

    def take_bracketed(self, into: list[Token]) -> None:
        """The next token, and if it opens a bracket all up to the one that closes it."""
        token, end = self.tokens[self.at], self.at
        if token.kind == MARK and token.text in CLOSING:
            end = closing(self.tokens, self.at)
        while self.at <= end:
            self.take(into)

    def take(self, into: list[Token]) -> None:
        """The next token; of a lambda, its whole body as one."""
        token = self.tokens[self.at]
        self.at += 1
        if token.text == "{" and _is_lambda(into):
            body = self.statements(None)
            self.at += 1
            token = Token(BLOCK, "{}", token.gap, tuple(body))
        if token.kind != COMMENT or token.text.startswith("/*"):
            into.append(token)

    # statements

    def statements(self, owner: Item | None) -> list[Item]:
        items: list[Item] = []
        while True:
            lead = self.comments()
            if self.here is None or self.here.text == "}":
                return items
            item = self.statement(owner)
            item.lead = lead + item.lead
            items.append(item)

    def statement(self, owner: Item | None) -> Item:
        pragmas: list[str] = []
        while (token := self.tokens[self.at]).kind == DIRECTIVE:
            pragmas.append(token.text.strip())
            self.at += 1
        item = Item(SIMPLE, [], pragmas=pragmas, owner=owner)
        if token.text == "{":
            item.kind = COMPOUND
            self.controlled(item)
        elif token.text in _CONTROL:
            item.kind = CONTROL
            self.take(item.head)
            if self.tokens[self.at].text == "constexpr":
                self.take(item.head)
            if token.text not in {"else", "do"}:
                self.take_bracketed(item.head)
            self.controlled(item)
            while token.text == "do" and not (item.tail and item.tail[-1].text == ";"):
                self.take_bracketed(item.tail)
        else:
            while self.tokens[self.at].text != ";":
                self.take_bracketed(item.head)
            self.take(item.head)
        item.trail = item.trail or self.comment_on_this_line()
        return item

    def controlled(self, item: Item) -> None:
        lead = self.comments() if item.kind == CONTROL else []
        if self.tokens[self.at].text == "{":
            self.at += 1
            item.note = self.comment_on_this_line()
            item.body = self.statements(item.owner)
            self.at += 1
        else:
            item.braces = False
            item.body = [self.statement(item.owner)]
            item.trail, item.body[0].trail = item.body[0].trail, ""
        item.lead += lead


def _is_lambda(before: Tokens) -> bool:
    if before and before[-1].text == ")":
        before = before[: opening(before, len(before) - 1)]
    return bool(before) and before[-1].text == "]" and _introduces(before)


def _introduces(before: Tokens) -> bool:
    """Whether the brackets at the end capture, instead of indexing or giving an extent."""
    start = opening(before, len(before) - 1)
    return start == 0 or before[start - 1].text in {"(", ",", "=", "return", "{"}


def _plain_kind(head: Tokens) -> str:
    first = head[after_templates(head)].text
    if first in {"static_assert", "concept", "friend", "extern"}:
        return OTHER
    return USING if first == "using" else VARIABLE


def _names(item: Item) -> tuple[str, ...]:
    head = item.head[after_templates(item.head) :]
    if item.kind == MACRO:
        return tuple(head[0].words[1:2]) if head[0].words[0] == "define" else _refuse(item)
    if item.kind == USING:
        if head[2].text == "=":
            return (head[1].text,)
        return tuple(chain[-1].text for chain in split_at(head[:-1], {","}))
    if item.kind == ENUM:
        return (head[1 + (head[1].text == "class")].text,)
    if item.kind == CLASS:
        return (_class_chain(head)[-1],)
    if item.kind == FUNCTION:
        return (_function_name(head),)
    return declared_names(head) if item.kind == VARIABLE else ()


def _refuse(item: Item) -> tuple[str, ...]:
    raise UnsupportedError(
        f"`{item.head[0].text.strip()}` in {item.source}: headers of a kernel that is shown as one "
        "file have no directives but #pragma, #include and #define"
    )


def _class_chain(head: Tokens) -> list[str]:
    """The name of a class, after the namespaces that it is defined in from outside of them."""
    at = next(index for index, token in enumerate(head) if token.text in _CLASS_KEYS) + 1
    while head[at].text in ATTRIBUTES:
        at = closing(head, at + 1) + 1
    chain = [head[at].text]
    while at + 1 < len(head) and head[at + 1].text == "::":
        at += 2
        chain.append(head[at].text)
    return chain


def _function_name(head: Tokens) -> str:
    at = 0
    while head[at].text != "(" or head[at - 1].text in ATTRIBUTES:
        if head[at].text == "operator":
            return "operator"
        at = closing(head, at) + 1 if head[at].text == "(" else at + 1
    if head[at - 1].text == ">":
        at = opening(head, at - 1)
    return head[at - 1].text


def declared_names(head: Tokens) -> tuple[str, ...]:
    """The names of all declarators: each stands before its extents, its arguments and its value."""
    names = []
    for declarator in split_at(head[:-1], {","}):
        before_value = split_at(declarator, {"="})[0]
        while before_value and before_value[-1].text in {"]", ")"}:
            before_value = before_value[: opening(before_value, len(before_value) - 1)]
        names += [token.text for token in before_value[-1:]]
    return tuple(names)
