# SPDX-License-Identifier: Apache-2.0
"""Templates over the config become what they are for the one config of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flash_attention_workbench.ladder.parse import VARIABLE, Item
from flash_attention_workbench.ladder.program import CONFIG, Program
from flash_attention_workbench.ladder.reach import Reach
from flash_attention_workbench.ladder.tokens import (
    NAME,
    Token,
    Tokens,
    after_angles,
    after_templates,
    opening,
    spaced,
    split_at,
)

_PARAMETERS = {CONFIG, f"{CONFIG}_"}


def make_concrete(program: Program, reach: Reach) -> None:
    """Rewrites what the kernel needs, in place; objects are the device's, which NVRTC infers."""
    rewriter = _Concrete(reach)
    for item in program.items:
        if item in reach.kept:
            rewriter.rewrite(item)
            if item.kind == VARIABLE and any(t.text in program.classes for t in item.head):
                item.head = [Token(NAME, "__device__"), *item.head[item.word == "inline" :]]


class _Concrete:
    def __init__(self, reach: Reach) -> None:
        self.templates = {
            name
            for item in reach.kept
            if _PARAMETERS & set(item.template_parameters)
            for name in item.names
        }
        self.parameters: set[str] = set()  # of the templates around what is rewritten

    def rewrite(self, item: Item) -> None:
        around = self.parameters
        self.parameters = around | set(item.template_parameters) - _PARAMETERS
        item.head = self._tokens(_without_parameter(item.head))
        item.tail = self._tokens(item.tail)
        if item.body is not None:
            item.body = [inner for inner in item.body if not _renames_config(inner)]
            for inner in item.body:
                self.rewrite(inner)
        self.parameters = around

    def _tokens(self, tokens: list[Token]) -> list[Token]:
        result: list[Token] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            index += 1
            for statement in token.body:
                self.rewrite(statement)
            if token.text == CONFIG and result and result[-1].text == "::":
                token = replace(token, gap=result[-2].gap)
                del result[-2:]
            if token.text in {"typename", "template"} and self._is_settled(result, tokens[index:]):
                tokens = list(tokens)
                tokens[index] = replace(tokens[index], gap=token.gap)
                continue
            result.append(token)
            if token.text in self.templates and index < len(tokens) and tokens[index].text == "<":
                end = after_angles(tokens, index)
                arguments = self._tokens(_without_argument(tokens[index:end]))
                if not arguments and len(result) > 1 and result[-2].text == "template":
                    del result[-2]  # what has no arguments is no template
                result += arguments
                index = end
        return result

    def _is_settled(self, before: Tokens, after: Tokens) -> bool:
        """Whether a chain of names with a `typename` or `template` depends on no parameter."""
        if not before and after[0].text == "<":
            return False  # the head of a template
        if not self.parameters:
            return True
        start = len(before)
        while start >= 2 and before[start - 1].text == "::":
            start -= 2
            if before[start].text == ">":
                start = opening(before, start) - 1
        first = before[start].text if start < len(before) else after[0].text
        return first == CONFIG or first in self.templates - self.parameters


def _without_parameter(head: list[Token]) -> list[Token]:
    end = after_templates(head)
    if not end:
        return head
    parts = split_at(head[2 : end - 1], {","})
    left = [part for part in parts if not part or part[-1].text not in _PARAMETERS]
    if len(left) == len(parts):
        return head
    if not left:
        return spaced(head[end:], head[0].gap)
    return [*head[:2], *_list(left), *head[end - 1 :]]


def _without_argument(tokens: Tokens) -> list[Token]:
    """`<Config, 64>` as `<64>`, and `<Config>` as nothing."""
    parts = split_at(tokens[1:-1], {","})
    left = [part for part in parts if len(part) > 1 or part[0].text not in _PARAMETERS]
    return [tokens[0], *_list(left), tokens[-1]] if left else []


def _list(parts: list[list[Token]]) -> Iterator[Token]:
    for index, part in enumerate(parts):
        if index:
            yield Token("mark", ",")
        yield from spaced(part, 1 if index else 0)


def _renames_config(item: Item) -> bool:
    return [token.text for token in item.head[:3]] == ["using", CONFIG, "="]
