# SPDX-License-Identifier: Apache-2.0
"""What a config leaves of its headers: branches it never takes and calls that do nothing go."""

from __future__ import annotations

from collections import Counter

from flash_attention_workbench.ladder.inline import in_place, inline_calls
from flash_attention_workbench.ladder.parse import CLASS, CONTROL, FUNCTION, SIMPLE, Item
from flash_attention_workbench.ladder.program import (
    Program,
    end_of_parameters,
    statements_of,
    tokens_of,
)
from flash_attention_workbench.ladder.reach import Reach
from flash_attention_workbench.ladder.tokens import (
    BLOCK,
    CLOSING,
    MARK,
    NAME,
    SPACE,
    Token,
    Tokens,
    closing,
    lex,
    spaced,
    split_at,
    text_of,
)
from flash_attention_workbench.ladder.values import Scope, Values, name_before

_CONSTANT = (["const"], ["constexpr"])  # how a local constant starts: `const type name = ...`
_ENDS_EXPRESSION = {",", ";", "=", "return"}


def specialise(program: Program) -> Reach:
    """Folds until nothing changes; what the kernel needs then."""
    _drop_asserts(program.items)
    while True:
        reach = Reach(program)
        folder = _Folder(Values(program, reach))
        for item in reach.kept:
            folder.declaration(item)
        if not folder.changed:
            return reach


def _drop_asserts(items: list[Item]) -> None:
    """Asserts make no code: they hold for every config that is valid."""
    for item in items:
        if item.body is not None:
            item.body = [inner for inner in item.body if inner.word != "static_assert"]
            _drop_asserts(item.body)


class _Folder:
    def __init__(self, values: Values) -> None:
        self.values, self.changed = values, False

    def declaration(self, item: Item) -> None:
        scope = Scope(item)
        if item.kind == FUNCTION and item.body is not None:
            self._find_constants(item, scope)
            item.body = self.statements(item.body, scope)
            _say_once(item.body)
            self._drop_unused(item, scope)
        start = end_of_parameters(item.head) + 1 if item.kind == FUNCTION else 0
        if item.kind != CLASS:
            item.head = [*item.head[:start], *self.simplified(item.head[start:], scope)]

    def _find_constants(self, function: Item, scope: Scope) -> None:
        for statement in function.body or ():
            words = [token.text for token in statement.head]
            if words[:1] in _CONSTANT and words[3:4] == ["="]:
                value = self.values.value(statement.head[4:-1], scope)
                if value is not None:
                    scope.constants[words[2]] = value

    def _drop_unused(self, function: Item, scope: Scope) -> None:
        """Local constants and aliases that nothing names any more."""
        used = Counter(
            word for tokens in tokens_of(function) for token in tokens for word in token.words
        )
        for around in (function, *statements_of(function.body or [])):
            kept = [
                statement
                for statement in around.body or ()
                if not self._is_unused(statement, used, scope)
            ]
            if around.body is not None and len(kept) < len(around.body):
                around.body, self.changed = kept, True

    def _is_unused(self, statement: Item, used: Counter[str], scope: Scope) -> bool:
        words = [token.text for token in statement.head]
        if words[:1] == ["using"]:
            return used[words[1]] == 1
        is_constant = words[:1] in _CONSTANT and words[3:4] == ["="] and used[words[2]] == 1
        return is_constant and self.values.is_pure(statement.head[4:-1], scope)

    # statements

    def statements(self, items: list[Item], scope: Scope) -> list[Item]:
        kept: list[Item] = []
        taken: bool | None = None  # whether the if before an else holds, if that is known
        for item, following in zip(items, [*items[1:], None], strict=False):
            is_else, chained = item.word == "else", _else_if(item)
            if is_else and taken:
                taken = True if chained else None  # the rest of the chain goes
                continue
            if is_else and taken is False and chained:
                item, is_else = chained, False  # it starts the chain now
            elif is_else and taken is False:
                kept += self._unwrapped(item, scope)
                taken = None
                continue
            elif chained and (taken := self._decided(chained, scope)) is not None:
                self.changed = True
                if not taken:
                    taken = None  # what follows is the else of the if before
                    continue
                item.body, item.braces = chained.body, True
                kept += self._statement(item, scope, has_else=False)
                continue
            taken = self._decided(item, scope)
            if taken is not None:
                self.changed = True
                kept += self._unwrapped(item, scope) if taken else []
                continue
            kept += self._statement(
                item, scope, has_else=bool(following and following.word == "else")
            )
            if kept and kept[-1].word == "return" and following is not None:
                self.changed = True
                break
        return kept

    def _decided(self, item: Item, scope: Scope) -> bool | None:
        """Whether the condition always holds, never does, or is to be found out."""
        if item.kind != CONTROL or item.word not in {"if", "while"}:
            return None
        opened = next(i for i, token in enumerate(item.head) if token.text == "(")
        condition = item.head[opened + 1 : -1]
        value = self.values.value(condition, scope)
        if value is None or (item.word == "while" and value):
            return None
        return bool(value)

    def _unwrapped(self, item: Item, scope: Scope) -> list[Item]:
        body = self.statements(item.body or [], scope)
        if body:
            body[0].lead = item.lead + body[0].lead
            body[-1].trail = body[-1].trail or item.trail
        return body

    def _statement(self, item: Item, scope: Scope, *, has_else: bool) -> list[Item]:
        if item.kind == SIMPLE and self._does_nothing(item.head, scope):
            self.changed = True
            return []
        item.head = self.simplified(item.head, scope)
        if item.kind == SIMPLE and (moved := in_place(item, self.values, scope)):
            self.changed = True
            return moved
        item.pragmas = [self._pragma(pragma, scope) for pragma in item.pragmas]
        if item.body is not None:
            changed, chained = self.changed, _else_if(item)
            body = (
                self._statement(chained, scope, has_else=has_else)
                if chained
                else self.statements(item.body, scope)
            )
            if not body and item.word == "for":
                self.changed = (
                    changed  # what a loop without effect makes of the code is not nothing
                )
                return [item]
            item.body = body
            if not item.body and item.word in {"if", "else"} and not has_else:
                self.changed = True
                return []
            item.braces |= len(item.body) != 1
        return [item]

    def _pragma(self, pragma: str, scope: Scope) -> str:
        """`#pragma unroll(condition ? 1 : count)` without the condition."""
        start, opened, expression = pragma.partition("(")
        if not opened:
            return pragma
        tokens = self.simplified(lex(expression.removesuffix(")")), scope)
        return f"{start}({text_of(tokens)})"

    def _does_nothing(self, head: Tokens, scope: Scope) -> bool:
        """A call of functions that are all empty, with arguments that change nothing."""
        start = next(
            (i for i, t in enumerate(head) if t.text == "(" and closing(head, i) == len(head) - 2),
            None,
        )
        name = name_before(head, start) if start else None
        if start is None or name is None or not _is_chain(head[:name]):
            return False
        functions = self.values.called(head, name, scope)
        return (
            bool(functions)
            and all(_is_empty(function) for function in functions)
            and self.values.is_pure(head[start + 1 : -2], scope)
        )

    # expressions

    def simplified(self, tokens: list[Token], scope: Scope) -> list[Token]:
        while (shorter := inline_calls(tokens, self.values, scope)) is not tokens:
            tokens, self.changed = shorter, True
        return self.expression(tokens, scope)

    def expression(self, tokens: Tokens, scope: Scope) -> list[Token]:
        """Without operands and alternatives that never count, in brackets and lambdas too."""
        result: list[Token] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            if token.kind == BLOCK:
                body = tuple(self.statements(list(token.body), scope))
                result.append(Token(BLOCK, token.text, token.gap, body))
            else:
                result.append(token)
            if token.kind == MARK and token.text in CLOSING:
                end = closing(tokens, index)
                result += self.expression(tokens[index + 1 : end], scope)
                index = end - 1
            index += 1
        return self._parts(result, scope)

    def _parts(self, tokens: list[Token], scope: Scope) -> list[Token]:
        """Each of the expressions between commas, semicolons and assignments by itself."""
        result: list[Token] = []
        part: list[Token] = []
        depth = 0
        for token in tokens:
            if token.kind == MARK:
                depth += (token.text in CLOSING) - (token.text in CLOSING.values())
            if depth == 0 and token.text in _ENDS_EXPRESSION:
                result += [*self._one(part, scope), token]
                part = []
            else:
                part.append(token)
        return result + self._one(part, scope)

    def _one(self, tokens: list[Token], scope: Scope) -> list[Token]:
        tokens = self._without_units(tokens, scope)
        alternatives = split_at(tokens, {"?"})
        if len(alternatives) == 2:
            value = self.values.value(alternatives[0], scope)
            rest = split_at(alternatives[1], {":"})
            if value is not None and len(rest) == 2:
                self.changed = True
                return spaced(rest[0] if value else rest[1], tokens[0].gap)
            return tokens
        for mark, neutral in (("||", False), ("&&", True)):
            if len(parts := split_at(tokens, {mark})) > 1:
                return self._operands(parts, mark, neutral, scope) or tokens
        return tokens

    def _without_units(self, tokens: list[Token], scope: Scope) -> list[Token]:
        """Without what is multiplied by or divided by a constant that is 1."""
        for index in range(1, len(tokens) - 1):
            if tokens[index].text in {"*", "/"} and tokens[index + 1].kind == NAME:
                value, end = self.values.named(tokens, index + 1, scope)
                operand = tokens[index - 1].kind != MARK or tokens[index - 1].text in {")", "]"}
                if value == 1 and operand:
                    self.changed = True
                    return self._without_units([*tokens[:index], *tokens[end:]], scope)
        return tokens

    def _operands(
        self, parts: list[list[Token]], mark: str, neutral: bool, scope: Scope
    ) -> list[Token]:
        """The operands that count; nothing if all do."""
        values = [self.values.value(part, scope) for part in parts]
        left = [part for part, value in zip(parts, values, strict=True) if value is None]
        if len(left) == len(parts):
            return []
        self.changed = True
        gap = parts[0][0].gap
        decides = any(value is not None and bool(value) != neutral for value in values)
        if decides or not left:
            return [Token(NAME, str(neutral != decides).lower(), gap)]
        return [
            *spaced(left[0], gap),
            *(token for part in left[1:] for token in (Token(MARK, mark, SPACE), *part)),
        ]


def _say_once(items: list[Item]) -> None:
    """A comment that came with several statements stays with the first of them."""
    said: set[str] = set()
    for item in statements_of(items):
        item.lead = [line for line in item.lead if line not in said]
        said.update(item.lead)


def _else_if(item: Item) -> Item | None:
    """The if that an else consists of; the else of that one follows in the list of statements."""
    body = item.body or []
    is_chained = item.word == "else" and not item.braces and [one.word for one in body] == ["if"]
    return body[0] if is_chained else None


def _is_empty(function: Item) -> bool:
    """Whether a function has a body, and nothing in it."""
    return function.body is not None and all(
        [token.text for token in statement.head] == ["return", ";"] for statement in function.body
    )


def _is_chain(tokens: Tokens) -> bool:
    """Whether the tokens are only what a name is qualified with."""
    marks = {"::", ".", "->", "<", ">", ","}
    return all(token.kind == NAME or token.text in marks for token in tokens) and (
        not tokens or tokens[0].text != "return"
    )
