# SPDX-License-Identifier: Apache-2.0
"""Which declarations a kernel needs: those that it reaches by name; when in doubt they stay."""

from __future__ import annotations

from collections.abc import Iterator

from flash_attention_workbench.ladder.parse import CLASS, FUNCTION, Item
from flash_attention_workbench.ladder.program import (
    MEMBER,
    Mention,
    Program,
    end_of_parameters,
    mentions,
    outermost,
    owners_of,
    parameters_of,
)
from flash_attention_workbench.ladder.tokens import after_templates


class Reach:
    """The declarations that the kernel entry needs, directly or through others."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kept: dict[Item, None] = {}
        self.of_objects: set[str] = set()  # names of members of any object
        self._unknown: set[str] = set()  # of members of a class that may be any
        self._of_class: dict[Item, set[str]] = {}  # of members of this one
        self._free: set[tuple[tuple[str, ...], str]] = set()  # bare ones, seen from a namespace
        self._spaced: set[tuple[tuple[str, ...], str]] = (
            set()
        )  # those behind the last part of a namespace
        self._types = {item.names[0] for item in program.items if item.kind == CLASS}
        self._classes = {(item.path, item.names[0]) for item in program.items if item.kind == CLASS}
        self._keep(program.entry)
        while self._grow(program.items):
            pass

    def _grow(self, items: list[Item]) -> bool:
        """Whether there were more to keep among the items or their members."""
        before = len(self.kept)
        for item in items:
            if item not in self.kept and self._is_wanted(item) and self._is_viable(item, items):
                self._keep(item)
            if item in self.kept and item.kind == CLASS:
                self._grow(item.body or [])
        return len(self.kept) > before

    def _is_wanted(self, item: Item) -> bool:
        if item.owner is not None:
            return self._is_member_wanted(item, item.owner)
        if item.kind == CLASS and item.body is None and self.program.defines(item):
            return False  # only declared: its definition comes before who needs it
        return any(
            (item.path, name) in self._free or (item.path[-1:], name) in self._spaced
            for name in item.names
        )

    def _is_member_wanted(self, member: Item, owner: Item) -> bool:
        names, known = set(member.names), self._of_class.get(owner, set())
        if owner is not self.program.config:
            known = known | self._unknown
        if member.is_field:
            # One that nothing names goes, if a constructor makes the objects.
            return bool(names & (known | self.of_objects)) or not _has_constructor(owner)
        if not names or names & {*owner.names, "operator"} or names & known:
            return True
        return bool(names & self.of_objects) and self.program.has_objects(owner)

    def _is_viable(self, item: Item, beside: list[Item]) -> bool:
        """Whether an overload or a specialisation takes only types that are known otherwise."""
        if sum(other.names == item.names and other.kind == item.kind for other in beside) < 2:
            return True
        start, end = after_templates(item.head), len(item.head)
        if item.kind == FUNCTION:
            end = end_of_parameters(item.head)
        elif ":" in (words := [token.text for token in item.head]):
            end = words.index(":")  # what follows are bases
        own = {*item.names, *item.template_parameters}
        types = {token.text for token in item.head[start:end]} & self._types - own
        return types <= {name for _, name in self._free} | {name for _, name in self._spaced}

    def _keep(self, item: Item) -> None:
        self.kept[item] = None
        parameters = parameters_of(item) if item.kind == FUNCTION else []
        for mention in mentions(item):
            if mention.qualifier is not None or mention.name not in parameters:
                self._note(mention, item)

    def _note(self, mention: Mention, item: Item) -> None:
        qualifier, name = mention.qualifier, mention.name
        classes: list[Item] | None = []
        if qualifier is None:
            path = outermost(item).path
            if item.kind != CLASS or name not in item.names:
                self._free.update(self._seen_from(path, name))
            classes = self.program.with_bases(owners_of(item))
        elif qualifier in self.program.namespaces:
            self._spaced.add(((qualifier,), name))
        elif qualifier == MEMBER:
            self.of_objects.add(name)
        else:
            classes = self.program.classes_of(qualifier, item)
        if classes is None:
            self._unknown.add(name)
        for known in classes or ():
            self._of_class.setdefault(known, set()).add(name)

    def _seen_from(self, path: tuple[str, ...], name: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """What a bare name can be, from inside out up to the first class of that name."""
        for depth in range(len(path), -1, -1):
            yield path[:depth], name
            if (path[:depth], name) in self._classes:
                return


def _has_constructor(item: Item) -> bool:
    return any(member.names == item.names for member in item.body or ())
