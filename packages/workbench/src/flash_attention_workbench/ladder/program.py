# SPDX-License-Identifier: Apache-2.0
"""All declarations of a kernel, and what the names in them can refer to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flash_attention_workbench.ladder.parse import ATTRIBUTES, CLASS, FUNCTION, MACRO, USING, Item
from flash_attention_workbench.ladder.tokens import (
    BLOCK,
    COMMENT,
    DIRECTIVE,
    NAME,
    Token,
    Tokens,
    after_templates,
    closing,
    opening,
    split_at,
)

CONFIG = "Config"
INSTRUCTIONS = "ptx"  # the namespace of the functions that are one instruction
MEMBER = "."  # the qualifier of what is named through an object


@dataclass(frozen=True)
class Mention:
    """A name as it stands in the code, and what stands before it: `Qualifier::name`."""

    qualifier: str | None
    name: str


class Program:
    """The declarations of a translation unit and of its headers, in an order that compiles."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items = _without_repeated_macros(items)
        self.entry = next(item for item in items if item.head[0].text == "extern")
        self.config = next(item for item in items if item.names == (CONFIG,))
        self.started = self._move_entry()
        self.namespaces = {name for item in items for name in item.path}
        self.classes: dict[str, list[Item]] = {}
        for item in items:
            if item.kind == CLASS and item.body is not None:
                self.classes.setdefault(item.names[0], []).append(item)
        self._bases = {
            token.text
            for item in items
            if item.kind == CLASS and ":" in (words := [token.text for token in item.head])
            for token in item.head[words.index(":") :]
        }
        self.slots: dict[str, Item] = {}  # the variants that the config binds
        self.slot_arguments: dict[str, list[list[Token]]] = {}  # of those that are templates
        for member in self.config.body or ():
            if member.kind == USING:
                self._bind(member)

    def _move_entry(self) -> tuple[str, ...]:
        """The entry stands beside the function that it calls, whose name is returned."""
        words = {word for tokens in tokens_of(self.entry) for t in tokens for word in t.words}
        for item in self.items:
            if item.kind == FUNCTION and item is not self.entry and set(item.names) & words:
                self.entry.path = item.path
                return item.names
        return ()

    def _bind(self, alias: Item) -> None:
        """The class that `using Slot = fa::family::slot::Class<...>;` names."""
        slot, head = alias.names[0], alias.head
        for index, token in enumerate(head):
            for found in self.classes.get(token.text, ()):
                if found.path[-1:] == (head[index - 2].text,):
                    self.slots[slot] = found
                    arguments = head[index + 2 : max(index + 2, len(head) - 2)]
                    self.slot_arguments[slot] = split_at(arguments, {","}) if arguments else []

    def defines(self, declared: Item) -> bool:
        """Whether a class that is only declared here is defined elsewhere, as it is."""
        count = len(declared.template_parameters)
        return any(
            item.path == declared.path and len(item.template_parameters) == count
            for item in self.classes.get(declared.names[0], ())
        )

    def classes_of(self, qualifier: str, item: Item) -> list[Item] | None:
        """The classes that `qualifier::` may stand for in `item`; None: any class."""
        if qualifier == CONFIG:
            return [self.config]
        if qualifier in self.slots:
            return self.with_bases([self.slots[qualifier]])
        if qualifier in parameters_around(item):
            return None
        return self.with_bases(self.classes[qualifier]) if qualifier in self.classes else None

    def has_objects(self, item: Item) -> bool:
        """Whether members of a class may be named through objects: not if all are static."""
        return item.names[0] in self._bases or any(
            member.is_field
            or (member.kind == FUNCTION and all(token.text != "static" for token in member.head))
            for member in item.body or ()
        )

    def with_bases(self, classes: list[Item]) -> list[Item]:
        """The classes and those that their heads name: their bases are among them."""
        named = (t.text for c in classes for t in c.head[after_templates(c.head) :])
        return classes + [base for name in named for base in self.classes.get(name, ())]


def _without_repeated_macros(items: list[Item]) -> list[Item]:
    macros = {item.head[0].text: item for item in reversed(items) if item.kind == MACRO}
    return [item for item in items if item.kind != MACRO or item in macros.values()]


def parameters_around(item: Item) -> set[str]:
    """The template parameters of a declaration and of those around it."""
    return {name for around in (item, *owners_of(item)) for name in around.template_parameters}


def end_of_parameters(head: Tokens) -> int:
    """The index of the bracket that closes the parameters of a function."""
    at = after_templates(head)
    while head[at].text != "(" or head[at - 1].text in ATTRIBUTES:
        at = closing(head, at) + 1 if head[at].text == "(" else at + 1
    return closing(head, at)


def parameters_of(function: Item) -> list[str]:
    """The names of the parameters; one without a name goes by its place."""
    head = [token for token in function.head if token.kind != COMMENT]
    end = end_of_parameters(head)
    parts = [part for part in split_at(head[opening(head, end) + 1 : end], {","}) if part]
    return [_declared_in(part) or f"#{index}" for index, part in enumerate(parts)]


def _declared_in(parameter: Tokens) -> str | None:
    """`d` of `float (&d)[4]`, nothing of `const Sequence&`."""
    last = max((i for i, token in enumerate(parameter) if token.kind == NAME), default=0)
    ends = last + 1 == len(parameter) or parameter[last + 1].text in {")", "[", "="}
    return parameter[last].text if last and ends else None


def outermost(item: Item) -> Item:
    """The declaration of a namespace that this is, or is a part of."""
    return [item, *owners_of(item)][-1]


def owners_of(item: Item) -> list[Item]:
    """The classes that a declaration is in, from inside out; a class is in itself."""
    owners = [item] if item.kind == CLASS else []
    while item.owner is not None:
        item = item.owner
        owners.append(item)
    return owners


def statements_of(items: list[Item] | tuple[Item, ...]) -> Iterator[Item]:
    """All statements, those inside of statements and of lambdas too."""
    for item in items:
        yield item
        for token in item.head:
            if token.kind == BLOCK:
                yield from statements_of(token.body)
        yield from statements_of(item.body or [])


def tokens_of(item: Item) -> Iterator[Tokens]:
    """The runs of tokens of a declaration, those of a class's members left out."""
    yield item.head
    yield item.tail
    if item.kind != CLASS:
        for statement in statements_of(item.body or []):
            yield statement.head
            yield statement.tail
            yield [Token(DIRECTIVE, pragma) for pragma in statement.pragmas]


def mentions(item: Item) -> set[Mention]:
    """Every name in a declaration, its members' left out if it is a class."""
    found = set()
    for tokens in tokens_of(item):
        for index, token in enumerate(tokens):
            qualifier = qualifier_at(tokens, index) if token.kind == NAME else None
            found |= {Mention(qualifier, word) for word in token.words}
    return found


def qualifier_at(tokens: Tokens, index: int) -> str | None:
    """What stands before the name at `index`: a namespace, a class, an object or nothing."""
    before = index - 1
    if before >= 0 and tokens[before].text == "template":
        before -= 1
    if before < 0 or tokens[before].text not in {"::", ".", "->"}:
        return None
    if tokens[before].text != "::":
        return MEMBER
    before -= 1
    if before >= 0 and tokens[before].text == ">":
        before = opening(tokens, before) - 1
    return tokens[before].text if before >= 0 and tokens[before].kind == NAME else MEMBER
