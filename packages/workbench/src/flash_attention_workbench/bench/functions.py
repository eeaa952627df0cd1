# SPDX-License-Identifier: Apache-2.0
"""The grid of score and mask functions: its points, and what every function is at one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from flash_attention import masks, scores
from flash_attention.call.call import Keywords
from flash_attention.call.function import Function
from flash_attention.errors import UnsupportedError
from flash_attention.masks import MaskFunction
from flash_attention.reference.judge import cu_seqlens
from flash_attention.scores import ScoreFunction
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.grid import HIDDEN, TOKENS, Measured

FUNCTIONS = "functions"  # the name of the grid
D_HEADS, SEQ_LENS = (64, 128), (1024, 4096, 16384)
PASSES = {"forward": Measured.FORWARD, "backward": Measured.BACKWARD}
WINDOW, SINKS, REACH, DOCUMENT = 1024, 4, 256, 1024  # DOCUMENT: the mean length of documents
SEED = 2031


@dataclass(frozen=True)
class FunctionPoint:
    """A function, the sizes of a problem, and the pass that is measured."""

    function: str
    d_head: int
    seq_len: int
    batch: int
    heads: int
    measured: Measured = Measured.FORWARD

    @property
    def label(self) -> str:
        """The point in a few words."""
        sizes = f"{self.batch} x {self.seq_len}, {self.heads} h, d {self.d_head}"
        return f"{self.function}, {sizes}, {self.measured.words}"


@dataclass(frozen=True, eq=False)
class Drawn:
    """What functions capture at some sizes: the same numbers for the same sizes."""

    seq_len: int
    prefix: Tensor  # (batch,): the keys that every query of a sequence sees
    documents: tuple[tuple[int, ...], ...]  # the lengths of those of every sequence
    ids: Tensor  # (batch, seq): the document of every position
    slopes: Tensor  # (heads,)
    table: Tensor  # (heads, 2 REACH + 1)
    bias: Tensor | None  # (heads, seq, seq), if the function has one

    @classmethod
    def of(cls, point: FunctionPoint, device: torch.device | str = "cpu") -> Drawn:
        """Draw what the function of a point may capture."""
        seq, batch, heads = point.seq_len, point.batch, point.heads
        draw = random.Random(SEED)
        prefix = [draw.randint(seq // 8, seq // 2) for _ in range(batch)]
        documents = drawn_documents(draw, seq, batch)
        ids = [torch.arange(len(of)).repeat_interleave(torch.tensor(of)) for of in documents]
        generator = torch.Generator(device).manual_seed(SEED)

        def normal(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)

        has_bias = KINDS[point.function].captures_bias
        return cls(
            seq,
            torch.tensor(prefix, dtype=torch.int32, device=device),
            documents,
            torch.stack(ids).int().to(device),
            scores.alibi_slopes(heads, device),
            normal(heads, 2 * REACH + 1, dtype=torch.float32),
            normal(heads, seq, seq, dtype=torch.bfloat16) if has_bias else None,
        )

    @property
    def window(self) -> int:
        """The keys that a query sees up to its own, where there is a window."""
        return min(WINDOW, self.seq_len // 2)

    def of_heads(self, heads: Sequence[int]) -> Drawn:
        """Return what some of the heads capture. It has copies."""
        chosen = list(heads)
        bias = None if self.bias is None else self.bias.detach()[chosen]
        return replace(self, slopes=self.slopes[chosen], table=self.table[chosen], bias=bias)


def drawn_documents(draw: random.Random, seq: int, batch: int) -> tuple[tuple[int, ...], ...]:
    """Cut a stream of tokens at random into documents of mean length DOCUMENT, or of that of a
    sequence if that is less. A sequence ends a document too. Returns the lengths in every
    sequence."""
    tokens = seq * batch
    cuts = draw.sample(range(1, tokens), tokens // min(DOCUMENT, seq) - 1)
    found = []
    for first in range(0, tokens, seq):
        inside = sorted(cut - first for cut in cuts if first < cut < first + seq)
        found.append(tuple(end - start for start, end in pairwise((0, *inside, seq))))
    return tuple(found)


@dataclass(frozen=True)
class Kind:
    """A function of the grid: how it is made, the built-in call that says the same or, for a score
    function, computes as many scores, and how many keys the queries of all sequences see."""

    words: str
    score: Callable[[Drawn], ScoreFunction] | None
    mask: Callable[[Drawn], MaskFunction] | None
    built_in: Callable[[Drawn], Keywords] | None
    cells: Callable[[Drawn], int]
    differs: bool = False  # between sequences
    captures_bias: bool = False

    def function(self, drawn: Drawn) -> Function:
        """Record the function with what it captures."""
        return Function(
            self.score and self.score(drawn),
            self.mask and self.mask(drawn),
        )


def _bias(drawn: Drawn) -> ScoreFunction:
    assert drawn.bias is not None
    return scores.additive_bias(drawn.bias)


def _full_cells(drawn: Drawn) -> int:
    return len(drawn.prefix) * drawn.seq_len**2


def _causal_cells(drawn: Drawn) -> int:
    return len(drawn.prefix) * _triangle(drawn.seq_len)


def _triangle(rows: int) -> int:
    return rows * (rows + 1) // 2


def _banded(drawn: Drawn, most: int) -> int:
    return len(drawn.prefix) * sum(min(row + 1, most) for row in range(drawn.seq_len))


def _prefix_cells(drawn: Drawn) -> int:
    return _causal_cells(drawn) + sum(_triangle(prefix - 1) for prefix in drawn.prefix.tolist())


def _packed(drawn: Drawn) -> Keywords:
    lengths = [length for of in drawn.documents for length in of]
    starts, longest = cu_seqlens(lengths, drawn.ids.device), max(lengths)
    return {
        "causal": True,
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


KINDS: dict[str, Kind] = {
    "causal": Kind(
        "causal",
        None,
        lambda drawn: masks.causal(),
        lambda drawn: {"causal": True},
        _causal_cells,
    ),
    "alibi_causal": Kind(
        "ALiBi, causal",
        lambda drawn: scores.alibi(drawn.slopes),
        lambda drawn: masks.causal(),
        lambda drawn: {"causal": True},
        _causal_cells,
    ),
    "prefix_lm": Kind(
        "prefix LM",
        None,
        lambda drawn: masks.prefix_lm(drawn.prefix),
        None,
        _prefix_cells,
        differs=True,
    ),
    "documents": Kind(
        "documents, causal",
        None,
        lambda drawn: masks.causal() & masks.documents(drawn.ids),
        _packed,
        lambda drawn: sum(_triangle(length) for of in drawn.documents for length in of),
        differs=True,
    ),
    "sink_window": Kind(
        "sinks and window",
        None,
        lambda drawn: masks.sink_window(SINKS, drawn.window - 1),
        None,
        lambda drawn: _banded(drawn, drawn.window + SINKS),
    ),
    "window": Kind(
        "window",
        None,
        lambda drawn: masks.window(drawn.window - 1, 0),
        lambda drawn: {"window": (drawn.window - 1, 0)},
        lambda drawn: _banded(drawn, drawn.window),
    ),
    "alibi_full": Kind(
        "ALiBi, full",
        lambda drawn: scores.alibi(drawn.slopes),
        None,
        lambda drawn: {},
        _full_cells,
    ),
    "relative_table": Kind(
        "relative table",
        lambda drawn: scores.relative_bias(drawn.table),
        None,
        lambda drawn: {},
        _full_cells,
    ),
    "additive_bias": Kind(
        "additive bias", _bias, None, lambda drawn: {}, _full_cells, captures_bias=True
    ),
}
"""By the name that --function has."""


def function_points(
    functions: Sequence[str] | None = None,
    d_heads: Sequence[int] | None = None,
    seq_lens: Sequence[int] | None = None,
    passes: Sequence[str] | None = None,
) -> list[FunctionPoint]:
    """The points of the grid with these functions, head dimensions, lengths and passes; None means
    all."""
    for name in functions or ():
        checked_choice("function", name, KINDS)
    for name in passes or ():
        checked_choice("pass", name, PASSES)
    found = []
    for seq in seq_lens or SEQ_LENS:
        for d in d_heads or D_HEADS:
            if TOKENS % seq or HIDDEN % d:
                raise UnsupportedError(
                    f"lengths of the {FUNCTIONS} grid divide {TOKENS} and its head dimensions"
                    f" {HIDDEN}; {seq} and {d} do not"
                )
            found += [
                FunctionPoint(name, d, seq, TOKENS // seq, HIDDEN // d, PASSES[each])
                for name in KINDS
                if functions is None or name in functions
                for each in PASSES
                if passes is None or each in passes
            ]
    return found
