# SPDX-License-Identifier: Apache-2.0
"""The program that a mask and a score function become: typed nodes, each with the earlier nodes
that it reads. Its text is all that a kernel is compiled from, and names no value of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Final, Literal, NamedTuple, cast

import torch

Type = Literal["bool", "int", "float"]
BOOL: Final = "bool"
INT: Final = "int"
FLOAT: Final = "float"
RANK: Final[dict[Type, int]] = {BOOL: 0, INT: 1, FLOAT: 2}

BATCH, HEAD, QUERY, KEY, SCORE = 1, 2, 4, 8, 16  # what a node depends on, as bits
LEAVES: Final[dict[str, tuple[Type, int]]] = {
    "score": (FLOAT, SCORE),
    "batch": (INT, BATCH),
    "head": (INT, HEAD),
    "query": (INT, QUERY),
    "key": (INT, KEY),
}

DTYPES: Final[dict[torch.dtype, Type]] = {
    torch.bool: BOOL,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), INT),
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), FLOAT),
}
"""The element types of captured tensors, and what a read of one gives."""


class Node(NamedTuple):
    """One operation.

    - `op`: a leaf, "literal", "number", "load", or an operation. "and", "or", "xor" and "not" are
      those of bits if the type is int; "cast" converts to the type; "select" is where.
    - `inputs`: the nodes that it reads; of a load its indices.
    - `detail`: the slot of a number or a captured tensor, or the word of a literal.
    """

    op: str
    type: Type
    inputs: tuple[int, ...] = ()
    detail: int | str | None = None


class TensorType(NamedTuple):
    """What a program knows of a captured tensor."""

    dtype: torch.dtype
    ndim: int

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{self.ndim}]"


class How(Enum):
    """How a kernel sums the gradient of a captured tensor."""

    STORE = "store"  # every element has one term, and is stored in the dtype of the tensor
    ADD = "add"  # terms are added in float32, in any order
    EXACT = "exact"  # terms are added without rounding, so that their order does not matter
    TILES = "tiles"  # every element has one term, and tiles of dS are stored as the gradient
    TILE_SUMS = "tile_sums"  # tiles of dS are stored, and another kernel adds them up

    @property
    def by_tiles(self) -> bool:
        """Whether tiles of dS leave as they are, and no lane has a part in it."""
        return self in (How.TILES, How.TILE_SUMS)

    @property
    def in_float32(self) -> bool:
        """Whether kernels leave float32 sums, else elements of the dtype of the tensor."""
        return self in (How.ADD, How.EXACT)


# A program is a text of one line: torch.compile writes it into comments of the code that it makes.
_BETWEEN = "; "


class Gathered(NamedTuple):
    """A captured tensor whose gradient a backward kernel computes."""

    slot: int
    how: How


@dataclass(frozen=True, eq=False)
class Program:
    """Nodes in an order in which they can be computed, and which of them are the results."""

    nodes: tuple[Node, ...]
    tensors: tuple[TensorType, ...]
    numbers: tuple[Type, ...]
    score: int | None  # the node of the changed score
    mask: int | None  # the node that says whether a query sees a key
    gathered: tuple[Gathered, ...] = ()  # gradients of captured tensors, in a backward pass

    @cached_property
    def text(self) -> str:
        """The program in a canonical form: equal programs have equal texts."""
        return self.written()

    @property
    def lines(self) -> list[str]:
        """The text for a reader: a line for each operation."""
        return self.text.split(_BETWEEN)

    def written(self) -> str:
        """The text, for torch.compile, which does not follow cached properties."""
        lines = [
            f"tensors {' '.join([str(each) for each in self.tensors])}",
            f"numbers {' '.join(self.numbers)}",
            *[_line(index, node) for index, node in enumerate(self.nodes)],
            f"score {self.score}",
            f"mask {self.mask}",
            *(f"gradient {slot} {how.value}" for slot, how in self.gathered),
        ]
        return _BETWEEN.join(lines)

    @cached_property
    def digest(self) -> str:
        """A short name of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def depends(self) -> tuple[int, ...]:
        """What every node depends on: bits of BATCH, HEAD, QUERY, KEY and SCORE."""
        return dependences(self.nodes)

    @property
    def by_tiles(self) -> Gathered | None:
        """The gradient that leaves as tiles of dS. There is at most one."""
        return next((each for each in self.gathered if each.how.by_tiles), None)

    @property
    def by_lanes(self) -> tuple[Gathered, ...]:
        """The gradients that lanes store or add to."""
        return tuple(each for each in self.gathered if not each.how.by_tiles)

    @property
    def score_depends(self) -> int:
        """What the changed score depends on; 0 without a score function."""
        return 0 if self.score is None else self.depends[self.score]

    @property
    def mask_depends(self) -> int:
        """What the mask depends on; 0 without a mask function."""
        return 0 if self.mask is None else self.depends[self.mask]


def _line(index: int, node: Node) -> str:
    detail = "" if node.detail is None else f" {node.detail}"
    inputs = "".join(f" %{each}" for each in node.inputs)
    return f"%{index} {node.type} {node.op}{detail}{inputs}"


@cache
def read_program(text: str) -> Program:
    """The program that was written as a text."""
    first, second, *lines, score, mask = text.split(_BETWEEN)
    tensors = [word.split("[") for word in first.split()[1:]]
    results = [None if line.endswith("None") else int(line.split()[1]) for line in (score, mask)]
    return Program(
        tuple(_read_node(line) for line in lines),
        tuple(TensorType(getattr(torch, name), int(ndim[:-1])) for name, ndim in tensors),
        tuple(cast(list[Type], second.split()[1:])),
        results[0],
        results[1],
    )


def _read_node(line: str) -> Node:
    _, type_, op, *rest = line.split()
    inputs = tuple(int(word[1:]) for word in rest if word.startswith("%"))
    words = [word for word in rest if not word.startswith("%")]
    detail: int | str | None = words[0] if words else None
    if op in ("load", "number"):
        detail = int(words[0])
    return Node(op, cast(Type, type_), inputs, detail)


def dependences(nodes: Sequence[Node]) -> tuple[int, ...]:
    """What every node depends on, as bits."""
    found: list[int] = []
    for node in nodes:
        bits = LEAVES[node.op][1] if node.op in LEAVES else 0
        for each in node.inputs:
            bits |= found[each]
        found.append(bits)
    return tuple(found)


def needed(nodes: Sequence[Node], results: Iterable[int | None]) -> set[int]:
    """The nodes that the results are computed from, themselves included."""
    found: set[int] = set()
    waiting = [each for each in results if each is not None]
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting.extend(nodes[index].inputs)
    return found
