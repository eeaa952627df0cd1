# SPDX-License-Identifier: Apache-2.0
"""Names without their namespaces: one file has room for all of them in one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

from flash_attention.compile.binding import defined_types
from flash_attention_workbench.ladder.parse import CLASS, Item
from flash_attention_workbench.ladder.program import INSTRUCTIONS, Program
from flash_attention_workbench.ladder.reach import Reach
from flash_attention_workbench.ladder.tokens import MARK, NAME, NONE, Token

OUTERMOST = "fa"  # this namespace and that of the instructions stay
PARTS = ("attn", "sm80", "sm90")  # what the kernels of the ladder are made of


def flatten(program: Program, reach: Reach) -> None:
    """Rewrites what the kernel needs, in place."""
    names = _Names(program, reach)
    for item in reach.kept:
        if item.owner is None:
            names.rewrite(item, item.path)
    for (space, name), new in names.renamed.items():
        for item in program.classes[name]:
            if item.path[-1] == space:
                item.names = (new,)


class _Names:
    def __init__(self, program: Program, reach: Reach) -> None:
        self.spaces = program.namespaces
        self.hiding = {
            name
            for item in reach.kept
            if item.owner is not None and item.names != item.owner.names
            for name in item.names
        }
        self.renamed = {
            (item.path[-1], item.names[0]): item.names[0] + _title(item.path[-1])
            for item in reach.kept
            if item.owner is None and item.kind == CLASS and item.names[0] in _ambiguous()
        }

    def rewrite(self, item: Item, path: tuple[str, ...]) -> None:
        item.head, item.tail = self._tokens(item.head, path), self._tokens(item.tail, path)
        for inner in item.body or ():
            self.rewrite(inner, path)

    def _tokens(self, tokens: list[Token], path: tuple[str, ...]) -> list[Token]:
        result: list[Token] = []
        spaces: list[Token] = []  # those that the next name is qualified with
        for token, after in zip(tokens, [*tokens[1:], None], strict=False):
            qualified = bool(result) and result[-1].text in {"::", ".", "->"}
            if token.text == "::" and spaces:
                continue
            if token.text in self.spaces and after and after.text == "::" and not qualified:
                spaces.append(token)
                continue
            for statement in token.body:
                self.rewrite(statement, path)
            if token.kind == NAME and not qualified:
                result += self._name(token, spaces, path)
            else:
                result.append(token)
            spaces = []
        return result

    def _name(self, token: Token, spaces: list[Token], path: tuple[str, ...]) -> list[Token]:
        around = [spaces[-1].text] if spaces else path[::-1]
        found = (self.renamed[s, token.text] for s in around if (s, token.text) in self.renamed)
        token = replace(token, text=next(found, token.text))
        if not spaces:
            return [token]
        if spaces[-1].text == INSTRUCTIONS:
            kept = "" if path[-1:] == (INSTRUCTIONS,) else INSTRUCTIONS
        else:
            kept = OUTERMOST if token.text in self.hiding else ""
        if not kept:
            return [replace(token, gap=spaces[0].gap)]
        return [Token(NAME, kept, spaces[0].gap), Token(MARK, "::"), replace(token, gap=NONE)]


def _title(space: str) -> str:
    return "".join(part.title() for part in space.split("_"))


@cache
def _ambiguous() -> frozenset[str]:
    """Variants that go by the same name in two slots. The namespace of a slot has none in it."""
    paths = [tuple(name.split("::")) for name in defined_types()]
    of_parts = {path[:2] for path in paths if len(path) > 3}
    names = Counter(
        path[2]
        for path in paths
        if len(path) == 3 and path[0] in PARTS and path[:2] not in of_parts
    )
    return frozenset(name for name, count in names.items() if count > 1)
