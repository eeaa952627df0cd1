# SPDX-License-Identifier: Apache-2.0
"""What the config settles: the values of constants, and the functions a call can mean."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from flash_attention_workbench.ladder.parse import FUNCTION, VARIABLE, Item
from flash_attention_workbench.ladder.program import (
    INSTRUCTIONS,
    MEMBER,
    Program,
    end_of_parameters,
    owners_of,
    qualifier_at,
    statements_of,
)
from flash_attention_workbench.ladder.reach import Reach
from flash_attention_workbench.ladder.tokens import (
    MARK,
    NAME,
    NUMBER,
    Token,
    Tokens,
    after_angles,
    closing,
    opening,
    split_at,
)

_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "^=", "|=", "&=", "++", "--"}
_CASTS = {"static_cast", "const_cast", "sizeof"}


@dataclass
class Scope:
    """Where an expression stands: the function or class, and its local constants."""

    item: Item
    constants: dict[str, int] = field(default_factory=dict)


class Values:
    """Looks constants and functions up among what the kernel needs."""

    def __init__(self, program: Program, reach: Reach) -> None:
        self.program, self.kept = program, reach.kept
        self.functions: dict[str, list[Item]] = {}
        self.constants: dict[str, list[Item]] = {}
        self.templates: set[str] = set(program.classes)
        self._asked: set[Item] = set()
        self.apart = set(program.started)  # what is put in place, though no slot's
        for item in reach.kept:
            if item.kind in {FUNCTION, VARIABLE}:
                table = self.functions if item.kind == FUNCTION else self.constants
                for name in item.names:
                    table.setdefault(name, []).append(item)
                if item.head[0].text == "template":
                    self.templates.update(item.names)
                if [token.text for token in item.head[:3]] == ["template", "<", ">"]:
                    self.apart.update(item.names)
        self.free = {
            name
            for name, functions in self.functions.items()
            if all(f.owner is None and f.path[-1:] != (INSTRUCTIONS,) for f in functions)
        }
        self.calls = self._count_calls()

    # functions

    def _count_calls(self) -> Counter[Item]:
        calls: Counter[Item] = Counter()
        for item in self.kept:
            if item.kind == FUNCTION:
                initialisers = item.head[end_of_parameters(item.head) :]
                for tokens in (initialisers, *(s.head for s in statements_of(item.body or []))):
                    for index, after in enumerate(tokens[1:]):
                        if tokens[index].text in self.functions and after.text in {"(", "<"}:
                            calls.update(self.called(tokens, index, Scope(item)))
        return calls

    def called(self, tokens: Tokens, at: int, scope: Scope) -> list[Item]:
        """The functions that the name at `at` can mean; none if it may be something else."""
        name, qualifier = tokens[at].text, qualifier_at(tokens, at)
        known = self.functions.get(name, [])
        if qualifier is None:
            owners = owners_of(scope.item)
            own = [function for function in known if function.owner in owners]
            return own or [function for function in known if function.owner is None]
        if qualifier in self.program.namespaces:
            return [f for f in known if f.owner is None and f.path[-1:] == (qualifier,)]
        if qualifier == MEMBER:
            return [f for f in known if f.owner is not None and self.program.has_objects(f.owner)]
        classes = self.program.classes_of(qualifier, scope.item)
        return [f for f in known if f.owner and (classes is None or f.owner in classes)]

    def is_pure(self, tokens: Tokens, scope: Scope) -> bool:
        """Whether computing this changes nothing, as far as can be told."""
        for index, token in enumerate(tokens):
            if token.kind == MARK and token.text in ASSIGNMENTS:
                return False
            if token.text == "(" and index and not self._pure_call(tokens, index, scope):
                return False
        return True

    def _pure_call(self, tokens: Tokens, index: int, scope: Scope) -> bool:
        name = name_before(tokens, index)
        if name is None or tokens[name].text in _CASTS | set(self.program.classes):
            return True
        if tokens[name + 1].text == "(" and tokens[name].text in {"if", "while", "for"}:
            return True
        functions = self.called(tokens, name, scope)
        return bool(functions) and all(self._changes_nothing(function) for function in functions)

    def _changes_nothing(self, function: Item) -> bool:
        """A const member function, or one that only names and returns things."""
        after = function.head[end_of_parameters(function.head) :]
        if any(token.text == "const" for token in after):
            return True
        inside = Scope(function)
        return bool(function.body) and all(
            statement.word in {"const", "constexpr", "return"}
            and self.is_pure(split_at(statement.head[1:-1], {"="})[-1], inside)
            for statement in function.body or ()
        )

    # constants

    def value(self, tokens: Tokens, scope: Scope) -> int | None:
        """The value of a constant expression, None if it is not known."""
        for mark, decides in (("||", 1), ("&&", 0)):
            if len(parts := split_at(tokens, {mark})) > 1:
                values = [self.value(part, scope) for part in parts]
                known = [value != 0 for value in values if value is not None]
                if decides in known:
                    return decides
                return None if None in values else 1 - decides
        if len(split_at(tokens, {"?"})) > 1:
            return None
        operands: list[int | None] = []
        marks: list[str] = []
        index = 0
        while index < len(tokens):
            value, index = self._operand(tokens, index, scope)
            operands.append(value)
            if index < len(tokens):
                marks.append(tokens[index].text)
                index += 1
        return _compute(operands, marks) if operands and len(operands) == len(marks) + 1 else None

    def _operand(self, tokens: Tokens, index: int, scope: Scope) -> tuple[int | None, int]:
        token = tokens[index]
        if token.text in {"!", "-"} and index + 1 < len(tokens):
            value, after = self._operand(tokens, index + 1, scope)
            return (
                None if value is None else int(not value) if token.text == "!" else -value
            ), after
        if token.text == "(":
            end = closing(tokens, index)
            return self.value(tokens[index + 1 : end], scope), end + 1
        if token.kind == NUMBER:
            return (int(token.text) if token.text.isdigit() else None), index + 1
        if token.kind == NAME:
            return self.named(tokens, index, scope)
        return None, len(tokens)

    def named(self, tokens: Tokens, index: int, scope: Scope) -> tuple[int | None, int]:
        """The value of `A::B<...>::name`, or of a call that always returns the same."""
        pure = True
        while True:
            last, called = index, False
            index += 1
            if (
                tokens[index : index + 1]
                and tokens[index].text == "<"
                and tokens[last].text in self.templates
            ):
                index = after_angles(tokens, index)
            if called := index < len(tokens) and tokens[index].text == "(":
                end = closing(tokens, index)
                pure = pure and self.is_pure(tokens[index + 1 : end], scope)
                index = end + 1
            if index >= len(tokens) or tokens[index].text not in {"::", ".", "->"}:
                break
            index += 1 + (tokens[index + 1].text == "template")
        if not pure or (index < len(tokens) and tokens[index].text in {"[", "(", "{"}):
            return None, len(tokens)
        find = self._returned if called else self._constant
        return find(tokens, last, scope), index

    def _constant(self, tokens: Tokens, at: int, scope: Scope) -> int | None:
        name, qualifier = tokens[at].text, qualifier_at(tokens, at)
        if qualifier is None:
            if name in {"true", "false"}:
                return int(name == "true")
            if name in scope.constants:
                return scope.constants[name]
            owners: list[Item] | None = owners_of(scope.item)
        elif qualifier == MEMBER:
            return None
        elif qualifier in self.program.namespaces:
            owners = []
        else:
            owners = self.program.classes_of(qualifier, scope.item)
        known = self.constants.get(name, [])
        found = [item for item in known if item.owner is not None and item.owner in (owners or ())]
        if not found and owners is not None:
            found = [item for item in known if item.owner is None]
        return self._defined(found[0]) if len(found) == 1 else None

    def _defined(self, constant: Item) -> int | None:
        value = split_at(constant.head[:-1], {"="})
        if len(value) != 2 or all(token.text != "constexpr" for token in value[0]):
            return None
        return self.value(value[1], Scope(constant))

    def _returned(self, tokens: Tokens, at: int, scope: Scope) -> int | None:
        """What the functions of this name all return; those that ask themselves do not count."""
        results: set[int | None] = set()
        for function in self.called(tokens, at, scope):
            if function not in self._asked:
                self._asked.add(function)
                results.add(self.value(returned(function), Scope(function)))
                self._asked.discard(function)
        return results.pop() if len(results) == 1 else None


def returned(function: Item) -> list[Token]:
    """The expression that a function consists of, if it does nothing else."""
    body = function.body or []
    if len(body) == 1 and body[0].word == "return":
        return body[0].head[1:-1]
    return []


def name_before(tokens: Tokens, index: int) -> int | None:
    """The index of the name that is called by the `(` at `index`, if it is a call."""
    before = index - 1
    if before >= 0 and tokens[before].text == ">":
        before = opening(tokens, before) - 1
    return before if before >= 0 and tokens[before].kind == NAME else None


def _compute(operands: list[int | None], marks: list[str]) -> int | None:
    for level in _LEVELS:
        for index in range(len(marks) - 1, -1, -1):
            if marks[index] in level:
                left = _compute(operands[: index + 1], marks[:index])
                right = _compute(operands[index + 1 :], marks[index + 1 :])
                if left is None or right is None or (right == 0 and marks[index] in "/%"):
                    return None
                return int(level[marks[index]](left, right))
    return operands[0] if not marks else None
