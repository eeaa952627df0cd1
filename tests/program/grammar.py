# SPDX-License-Identifier: Apache-2.0
"""Random mask and score functions, as users would write them. They run on tensors, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_attention.program.trace import trace

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTS = (torch.int32, torch.int64, torch.int16)
COORDINATES = ("batch", "head", "query", "key")


@dataclass(frozen=True)
class Sizes:
    """Of the scores that a function is made for."""

    batch: int = 2
    heads: int = 3
    queries: int = 40
    keys: int = 56


class At(NamedTuple):
    """The arguments of a function."""

    score: Any
    batch: Any
    head: Any
    query: Any
    key: Any


Part = Callable[[At], Any]


def random_function(
    seed: int, sizes: Sizes | None = None, dtype: torch.dtype | None = None
) -> tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]:
    """A score function, a mask function, and the tensors that they capture, all on the CPU. Floats
    in these have `dtype`, or one that is drawn. The functions read none out of bounds."""
    grammar = Grammar(seed, sizes or Sizes(), dtype)
    score, mask = grammar.score(), grammar.boolean(3)

    def change(score_: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score(At(score_, batch, head, query, key))

    def see(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return mask(At(None, batch, head, query, key))

    trace(change, see)
    return change, see, grammar.tensors


class Grammar:
    """Draws expressions. `depth` limits how many operations are within each other."""

    def __init__(self, seed: int, sizes: Sizes, dtype: torch.dtype | None) -> None:
        self.draw = random.Random(seed)
        self.sizes = sizes
        self.dtype = dtype
        self.tensors: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(seed)

    def score(self) -> Part:
        """A score function: it depends on the score, in one of several ways."""
        inner, weight = self.floating(3), self.floating(1)
        cap, condition = self.draw.uniform(1, 30), self.boolean(2)
        return self.draw.choice(
            [
                lambda at: at.score + inner(at),
                lambda at: cap * torch.tanh((at.score + inner(at)) / cap),
                lambda at: at.score * torch.sigmoid(weight(at)) - inner(at),
                lambda at: torch.where(condition(at), at.score, inner(at)),
                lambda at: torch.where(condition(at), at.score, float("-inf")),
                lambda at: torch.maximum(at.score, inner(at)) * cap,
                lambda at: torch.clamp(at.score, -1.0, cap) + torch.abs(at.score - weight(at)),
                lambda at: (
                    at.score * at.score * 0.25
                    + torch.exp(torch.minimum(at.score, inner(at) * 0 + 2))
                ),
            ]
        )

    def captured(self, *shape: int, kind: str) -> Callable[[], Tensor]:
        """A captured tensor, made when it is used first."""
        return cache(lambda: self._make(shape, kind))

    def _make(self, shape: tuple[int, ...], kind: str) -> Tensor:
        """A tensor; some are no contiguous memory."""
        steps = self.draw.choice((1, 1, 2))
        room = (*shape[:-1], shape[-1] * steps) if shape else ()
        if kind == "float":
            tensor = torch.randn(room, generator=self._generator)
            tensor = tensor.to(self.dtype or self.draw.choice(FLOATS))
        elif kind == "int":
            tensor = torch.randint(0, 6, room, generator=self._generator)
            tensor = tensor.sort(-1)[0].to(self.draw.choice(INTS))
        else:
            tensor = torch.randint(0, 2, room, generator=self._generator).bool()
        tensor = tensor[..., ::steps] if shape else tensor
        self.tensors.append(tensor)
        return tensor

    def read(self, kind: str) -> Part:
        """An element of a captured tensor."""
        s = self.sizes
        n = max(s.queries, s.keys)
        name = self.draw.choice(("query", "key"))
        form = self.draw.randrange(5)
        if form == 0:
            each = self.captured(n, kind=kind)
            return lambda at: each()[getattr(at, name)]
        if form == 1:
            each = self.captured(s.batch, n, kind=kind)
            return lambda at: each()[at.batch, getattr(at, name)]
        if form == 2:
            each = self.captured(s.heads, s.queries, s.keys, kind=kind)
            return lambda at: each()[at.head, at.query, at.key]
        if form == 3:
            each, reach = self.captured(s.heads, 33, kind=kind), 16
            return lambda at: each()[at.head, torch.clamp(at.key - at.query, -reach, reach) + reach]
        each = self.captured(s.heads, kind=kind)
        return lambda at: each()[at.head]

    def integer(self, depth: int) -> Part:
        """An integer."""
        if depth == 0 or self.draw.random() < 0.15:
            name, number = self.draw.choice(COORDINATES), self.draw.randint(-9, 40)
            return self.draw.choice(
                [lambda at: getattr(at, name)] * 3 + [lambda at: at.key * 0 + number]
            )
        a, b, c = self.integer(depth - 1), self.integer(depth - 1), self.boolean(depth - 1)
        n, m = self.draw.randint(1, 13), self.draw.randint(-3, 3)
        return self.draw.choice(
            [
                lambda at: a(at) + b(at),
                lambda at: a(at) - b(at),
                lambda at: n - a(at),
                lambda at: at.query - at.key + m,
                lambda at: a(at) * m,
                lambda at: a(at) // n,
                lambda at: a(at) % n,
                lambda at: torch.remainder(a(at), n) * n + torch.floor_divide(b(at), n),
                lambda at: torch.minimum(a(at), b(at)),
                lambda at: torch.maximum(a(at), b(at)),
                lambda at: abs(a(at)),
                lambda at: -a(at),
                lambda at: (a(at) & 15) | 16,
                lambda at: a(at) ^ b(at),
                lambda at: torch.where(c(at), a(at), b(at)),
                lambda at: torch.clamp(a(at), m, m + n),
                self.read("int"),
            ]
        )

    def floating(self, depth: int) -> Part:
        """A float of no great size."""
        number = self.draw.uniform(-2, 2)
        if depth == 0:
            return self.draw.choice(
                [
                    self.read("float"),
                    lambda at: number * (at.key - at.query) * 0.125,
                    lambda at: torch.exp2(-(at.head + 1) * 2.0 / 3) * number,
                ]
            )
        a, b, c = self.floating(depth - 1), self.floating(depth - 1), self.boolean(depth - 1)
        i = self.integer(depth - 1)
        return self.draw.choice(
            [
                lambda at: a(at) + b(at),
                lambda at: a(at) - number,
                lambda at: a(at) * torch.tanh(b(at)),
                lambda at: a(at) / (abs(b(at)) + 1.5),
                lambda at: number * torch.clamp(i(at), -30, 30).to(torch.float64) / 7.0,
                lambda at: torch.exp(torch.clamp(a(at), max=2.0)),
                lambda at: torch.log(abs(a(at)) + 0.5),
                lambda at: torch.sqrt(a(at) * a(at) + 0.25),
                lambda at: torch.sigmoid(a(at)),
                lambda at: torch.maximum(a(at), b(at)),
                lambda at: torch.minimum(a(at), b(at) * 0.5),
                lambda at: torch.where(c(at), a(at), number),
                lambda at: torch.relu(a(at)) - torch.abs(b(at)),
            ]
        )

    def boolean(self, depth: int) -> Part:
        """A bool."""
        number = self.draw.uniform(-2, 2)
        if depth == 0:
            n = self.draw.randint(-20, 20)
            return self.draw.choice(
                [
                    lambda at: at.query >= at.key,
                    lambda at: at.query - at.key <= n,
                    lambda at: at.key < n,
                    self.read("bool"),
                ]
            )
        a, b = self.boolean(depth - 1), self.boolean(depth - 1)
        i, j, x = self.integer(depth - 1), self.integer(depth - 1), self.floating(depth - 1)
        n, other = self.draw.randint(1, 9), self.draw.randint(-20, 20)
        return self.draw.choice(
            [
                lambda at: a(at) & b(at),
                lambda at: a(at) | b(at),
                lambda at: a(at) ^ b(at),
                lambda at: ~a(at),
                lambda at: torch.logical_and(a(at), ~b(at)),
                lambda at: i(at) < j(at),
                lambda at: i(at) >= other,
                lambda at: i(at) == j(at),
                lambda at: i(at) % n != 0,
                lambda at: x(at) > number,
                lambda at: torch.where(a(at), b(at), i(at) <= j(at)),
                self._documents(),
            ]
        )

    def _documents(self) -> Part:
        s = self.sizes
        each = self.captured(s.batch, max(s.queries, s.keys), kind="int")
        return lambda at: each()[at.batch, at.query] == each()[at.batch, at.key]
