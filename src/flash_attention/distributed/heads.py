# SPDX-License-Identifier: Apache-2.0
"""The head exchange: ranks that hold all heads of some rows get some heads of all rows, and back.

Every rank of the group then computes attention of its heads over the rows of the whole group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from flash_attention.distributed.block import ROWS, take
from flash_attention.distributed.spans import Spans, count_rows, held
from flash_attention.distributed.transport import Exchange
from flash_attention.errors import UnsupportedError

HEADS_DIM = 2  # the dimension of heads


def divides(heads: int, heads_k: int, ranks: int) -> bool:
    """Whether heads can be divided among ranks. Ranks may share heads of k and v."""
    return heads % ranks == 0 and (heads_k % ranks == 0 or ranks % heads_k == 0)


def check_heads(heads: int, heads_k: int, ranks: int) -> None:
    """Check that heads can be divided among ranks."""
    if not divides(heads, heads_k, ranks):
        raise UnsupportedError(
            f"q has {heads} heads, k and v have {heads_k}, and {ranks} ranks exchange heads; the"
            " heads of q must be a multiple of the ranks, and those of k and v a multiple or a"
            " divisor: pass schedule='ring' or a mesh with another second dimension"
        )


class HeadExchange(NamedTuple):
    """The ranks that exchange heads, and the rows that each of them holds."""

    group: ProcessGroup
    rank: int  # in the group
    pieces: tuple[Spans, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.pieces)

    def own(self, heads: int) -> slice:
        """The heads of q that this rank computes."""
        of_rank = heads // self.ranks
        return slice(self.rank * of_rank, (self.rank + 1) * of_rank)

    def to_heads(self, tensor: Tensor) -> Tensor:
        """Exchange (batch, own rows, all heads, d) for (batch, all rows, own heads, d), with rows
        in ascending order."""
        if missing := self.ranks // tensor.shape[HEADS_DIM]:
            tensor = tensor.repeat_interleave(missing, HEADS_DIM)  # ranks that share a head of k
        swapped = self._swap(tensor, self._by_heads(tensor.shape[HEADS_DIM]), self._by_rows())
        _, spans = self._ascending()
        return take(swapped, spans)

    def to_rows(self, tensor: Tensor) -> Tensor:
        """Exchange the other way round."""
        order, spans = self._ascending()
        places = zip(order, (each.at for each in held(spans)), strict=True)
        by_rank = take(tensor, tuple(at for _, at in sorted(places)))
        heads = tensor.shape[HEADS_DIM] * self.ranks
        return self._swap(by_rank, self._by_rows(), self._by_heads(heads))

    def _ascending(self) -> tuple[list[int], Spans]:
        """The spans of all ranks in ascending order: their numbers by rank, and where they lie if
        the rows of one rank follow those of another."""
        every = list(held(sum(self.pieces, ())))
        order = sorted(range(len(every)), key=lambda number: every[number].span)
        return order, tuple(every[number].at for number in order)

    def _by_heads(self, heads: int) -> _Parts:
        return _Parts(HEADS_DIM, (heads // self.ranks,) * self.ranks)

    def _by_rows(self) -> _Parts:
        return _Parts(ROWS, tuple(map(count_rows, self.pieces)))

    def _swap(self, tensor: Tensor, divided: _Parts, joined: _Parts) -> Tensor:
        swap: Callable[..., Tensor] = _Swap.apply
        return swap(tensor, self.group, self.rank, divided, joined)


class _Parts(NamedTuple):
    """How a dimension is divided among ranks."""

    dim: int
    sizes: Sequence[int]


class _Swap(Function):
    """Divide a tensor along one dimension, send each rank its part, and join along another."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        group: ProcessGroup,
        rank: int,
        divided: _Parts,
        joined: _Parts,
    ) -> Tensor:
        ctx.swap = group, rank, divided, joined
        parts = dict(enumerate(tensor.split(list(divided.sizes), divided.dim)))
        shapes = {other: list(tensor.shape) for other in parts}
        for other, shape in shapes.items():
            shape[divided.dim] = divided.sizes[rank]
            shape[joined.dim] = joined.sizes[other]
        others = [other for other in parts if other != rank]
        sizes: dict[int, int] = {other: math.prod(map(int, shapes[other])) for other in others}
        exchange = Exchange(
            group,
            {other: parts[other].flatten() for other in others if parts[other].numel()},
            {other: size for other, size in sizes.items() if size},
            like=tensor,
        )
        arrived = exchange.wait() | {rank: parts[rank]}
        empty = tensor.new_empty(0)
        found = [arrived.get(other, empty).reshape(shape) for other, shape in shapes.items()]
        return torch.cat(found, joined.dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        group, rank, divided, joined = ctx.swap
        swap: Callable[..., Tensor] = _Swap.apply
        return swap(gradient, group, rank, joined, divided), None, None, None, None
