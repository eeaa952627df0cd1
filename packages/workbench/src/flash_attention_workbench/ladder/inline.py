# SPDX-License-Identifier: Apache-2.0
"""Calls become what they call: where a function only passes something on, or is called once.

What is left is as it would be written for this config alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from flash_attention_workbench.ladder.parse import FUNCTION, SIMPLE, Item, declared_names
from flash_attention_workbench.ladder.program import (
    CONFIG,
    MEMBER,
    outermost,
    parameters_of,
    qualifier_at,
    statements_of,
    tokens_of,
)
from flash_attention_workbench.ladder.tokens import (
    MARK,
    NAME,
    NONE,
    Token,
    Tokens,
    after_angles,
    closing,
    spaced,
    split_at,
)
from flash_attention_workbench.ladder.values import ASSIGNMENTS, Scope, Values

Meaning = dict[str, list[Token]]
"""What the parameters of a function stand for."""

_PLAIN_MARKS = {"(", ")", ",", "::", ".", "<", ">"}
_DELIMITERS = {"(", ")", ",", ";", "=", "return", "?", ":", "[", "]", "{", "}"}
_OPERATORS = {*"+-*/%?:&|^=!~", "<<", "==", "!=", "<=", ">=", "&&", "||"}
_THIS = ["*", "this"]


@dataclass(frozen=True)
class _Call:
    """Tokens `start` to `end` call `function`; its name is behind the tokens of `chain`."""

    function: Item
    start: int
    end: int
    chain: list[Token]
    meant: Meaning
    open_parameters: set[str]  # of the template, that no argument was given for


def inline_calls(tokens: list[Token], values: Values, scope: Scope) -> list[Token]:
    """The tokens with the first call that only passes on replaced, or the very same list."""
    for index in range(len(tokens)):
        call = _call_at(tokens, index, values, scope, values.free)
        if call is None or (result := _passed_on(call, values, scope)) is None:
            continue
        if not _stands_alone(tokens, call.start, call.end):
            result = _atomic(result)
        result = spaced(result, tokens[call.start].gap)
        return [*tokens[: call.start], *result, *tokens[call.end :]]
    return tokens


def in_place(statement: Item, values: Values, scope: Scope) -> list[Item]:
    """The statements of the one function that is called here and nowhere else, or nothing."""
    tokens = statement.head
    calls = (_call_at(tokens, i, values, scope, values.apart) for i in range(len(tokens)))
    call = next((call for call in calls if call), None)
    if call is None or (call.start, call.end) != (0, len(tokens) - 1):
        return []
    function = call.function
    if not _fits(call, values, scope):
        return []
    moved = [_moved(inner, call.meant, statement.owner) for inner in function.body or ()]
    variant = outermost(function)
    idea = variant.lead or variant.about if function.owner else []
    moved[0].lead = [*statement.lead, *idea, *function.lead, *moved[0].lead]
    return moved


def _call_at(
    tokens: Tokens, name: int, values: Values, scope: Scope, free: set[str]
) -> _Call | None:
    """The call of a slot's function, or of one of those in `free`, whose name is here."""
    if tokens[name].kind != NAME or tokens[name].text not in values.functions:
        return None
    qualifier, opened = qualifier_at(tokens, name), name + 1
    if qualifier not in values.program.slots and (
        qualifier == MEMBER or tokens[name].text not in free
    ):
        return None
    given: list[list[Token]] = []
    if tokens[opened : opened + 1] and tokens[opened].text == "<":
        opened = after_angles(tokens, opened)
        given = split_at(tokens[name + 2 : opened - 1], {","})
    if opened >= len(tokens) or tokens[opened].text != "(":
        return None
    functions = [f for f in values.called(tokens, name, scope) if f.body is not None]
    end = closing(tokens, opened)
    arguments = [part for part in split_at(tokens[opened + 1 : end], {","}) if part]
    if len(functions) != 1 or len(parameters_of(functions[0])) != len(arguments):
        return None
    (function,) = functions
    if not function.body:
        return None
    meant = dict(zip(parameters_of(function), arguments, strict=True))
    given = [[token for token in part if token.text != "typename"] for part in given]
    of_slot = values.program.slot_arguments.get(qualifier or "", [])
    owner = function.owner.template_parameters if function.owner else []
    meant |= zip(function.template_parameters, given, strict=False)
    meant |= zip(owner, of_slot, strict=False)
    start = name
    while start >= 2 and tokens[start - 1].text in {"::", "template"}:
        start -= 2 if tokens[start - 1].text == "::" else 1
    unclear = {*function.template_parameters, *owner} - {*meant, CONFIG}
    return _Call(function, start, end + 1, spaced(tokens[start:name], NONE), meant, unclear)


# what only passes on


def _passed_on(call: _Call, values: Values, scope: Scope) -> list[Token] | None:
    """What the call amounts to, if the function computes nothing itself."""
    body = call.function.body or []
    if len(body) != 1 or body[0].kind != SIMPLE:
        return None
    passed = body[0].head[1:-1] if body[0].word == "return" else body[0].head[:-1]
    if any(token.kind == MARK and token.text not in _PLAIN_MARKS for token in passed):
        return None
    meant = _own_members(call) | call.meant
    known = {*meant, *values.program.namespaces, *values.program.slots}
    named = [token.text for token in passed]
    for index, token in enumerate(passed):
        if token.kind == NAME and qualifier_at(passed, index) is None and token.text not in known:
            return None
    for name in parameters_of(call.function):
        times, argument = named.count(name), meant[name]
        if times > 1 and len(argument) > 1:
            return None
        if times == 0 and not values.is_pure(argument, scope):
            return None
    return _substituted(passed, meant)


def _own_members(call: _Call) -> Meaning:
    """The functions of the same class, as they are named from outside of it."""
    members = call.function.owner.body if call.function.owner else []
    names = (member.names[0] for member in members or () if member.kind == FUNCTION)
    return {name: [*call.chain, Token(NAME, name)] for name in names}


# what is called once


def _fits(call: _Call, values: Values, scope: Scope) -> bool:
    """Whether a function can stand where it is called, its names among those of the caller."""
    function, caller = call.function, outermost(scope.item)
    statements = list(statements_of(function.body or []))
    beside = [m for m in (function.owner.body or ()) if m in values.kept] if function.owner else []
    alone = all(values.calls[m] == 1 for m in (function, *beside) if m.kind == FUNCTION)
    if not alone:  # nothing that a variant does stays behind
        return False
    if any(statement.word == "return" for statement in statements):
        return False
    space = outermost(function).path
    space = space[:-1] if function.owner else space  # a variant's is its slot's
    arguments = [token for name in parameters_of(function) for token in call.meant[name]]
    if caller.path[: len(space)] != space or not values.is_pure(arguments, scope):
        return False
    own = {name for statement in statements for name in _declared(statement)}
    changed = {name for statement in statements for name in _assigned(statement)}
    used = {token.text for s in statements for token in s.head if token.kind == NAME}
    taken = {t.text for tokens in tokens_of(scope.item) for t in tokens if t.kind == NAME}
    taken |= {name for member in caller.body or () for name in member.names}
    hidden = {name for member in beside for name in member.names} - set(call.meant)
    clashes = own & (taken | set(call.meant)) | changed & set(call.meant)
    return not clashes and not (call.open_parameters | hidden) & used


def _declared(statement: Item) -> set[str]:
    """The names that a statement declares, a loop those of its variables."""
    head = statement.head
    if statement.kind != SIMPLE:
        head = [*split_at(head[2:-1], {";", ":"})[0], Token(MARK, ";")]
    names = declared_names(head)
    first = next((i for i, token in enumerate(head) if token.text in names[:1]), 0)
    before = head[first - 1] if first else Token(MARK, "")
    is_type = before.text in {"*", "&", ">"} or (before.kind == NAME and before.text != "return")
    return set(names) if is_type else set()


def _assigned(statement: Item) -> set[str]:
    """The names that a statement assigns to or steps, elements and members of them left out."""
    pairs = list(pairwise(statement.head))
    stepped = {after.text for token, after in pairs if token.text in {"++", "--"}}
    return stepped | {token.text for token, after in pairs if after.text in ASSIGNMENTS}


def _moved(item: Item, meant: Meaning, owner: Item | None) -> Item:
    """A copy of a statement with arguments for parameters."""
    body = None if item.body is None else [_moved(inner, meant, owner) for inner in item.body]
    head = [
        replace(token, body=tuple(_moved(inner, meant, owner) for inner in token.body))
        for token in _substituted(item.head, meant)
    ]
    return replace(item, head=head, body=body, owner=owner, lead=list(item.lead))


# substitution


def _substituted(tokens: Tokens, meant: Meaning) -> list[Token]:
    result: list[Token] = []
    for index, token in enumerate(tokens):
        before = [token.text for token in result[-3:]]
        if token.kind == NAME and token.text in meant and qualifier_at(tokens, index) is None:
            argument = meant[token.text]
            alone = _stands_alone(tokens, index, index + 1)
            is_this = [token.text for token in argument] == _THIS
            result += spaced(argument if alone or is_this else _atomic(argument), token.gap)
        elif before == [*_THIS, "."]:  # its own member
            gap = result[-3].gap
            result = [*result[:-3], replace(token, gap=gap)]
        else:
            result.append(token)
    return result


def _stands_alone(tokens: Tokens, start: int, end: int) -> bool:
    """Whether nothing beside these tokens can bind a part of them."""
    before = tokens[start - 1].text if start else "("
    after = tokens[end].text if end < len(tokens) else ")"
    return {before, after} <= _DELIMITERS


def _atomic(tokens: list[Token]) -> list[Token]:
    """In brackets, if it computes something."""
    if len(split_at(tokens, _OPERATORS)) == 1:
        return tokens
    return [Token(MARK, "(", tokens[0].gap), *spaced(tokens, NONE), Token(MARK, ")")]
