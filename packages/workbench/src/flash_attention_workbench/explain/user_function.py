# SPDX-License-Identifier: Apache-2.0
"""What became of a user's score and mask functions: their program, its tiles and a picture."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.function import Function
from flash_attention.call.problem import Problem
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import Recipe
from flash_attention.program.cuda_reader import cuda_text
from flash_attention.program.nodes import BATCH, HEAD
from flash_attention.program.torch_reader import Coordinates, see
from flash_attention.program.verdict import Tile, Verdict, verdict

MOST_VERDICTS = 4096
ROWS, COLUMNS, SAMPLES = 16, 32, 8  # of a picture, and queries and keys of a cell on each side
SEEN, SOME, HIDDEN = "#", "+", "."


@dataclass(frozen=True)
class Tiles:
    """How many tiles of a sequence of a head are empty, full or partial."""

    empty: int
    full: int
    partial: int

    def __str__(self) -> str:
        every = max(1, self.empty + self.full + self.partial)
        named = {"empty": self.empty, "full": self.full, "partial": self.partial}
        return ", ".join(f"{100 * count / every:.0f} % {name}" for name, count in named.items())


@dataclass(frozen=True)
class FunctionExplanation:
    """The program of a function, and what its mask shows of the first sequence and head."""

    program: list[str]  # typed operations, a line each
    cuda: str  # the C++ type that kernels have of it
    tiles: Tiles | None  # None without lists of blocks, or if captured tensors have no values
    picture: tuple[str, ...]  # a line for some queries, a character for some keys
    whose: str  # which sequence and head the tiles are of

    def sections(self) -> dict[str, list[str]]:
        """Return the rows of a report."""
        found = {"program": self.program, "cuda": self.cuda.splitlines()}
        if self.picture:
            blocks = "all of them are visited" if self.tiles is None else str(self.tiles)
            found["blocks"] = [f"{blocks}{self.whose}"]
            found["mask"] = list(self.picture)
        return found


def explain_function(
    call: Call, problem: Problem, config: KernelConfig, recipe: Recipe
) -> FunctionExplanation | None:
    """Explain the function of a checked call, whose tiles are those of a config."""
    function = call.function
    if function is None:
        return None
    program = function.program
    readable = program.mask is not None and not any(t.is_meta for t in function.tensors)
    view = MaskView(function, problem)
    has_lists = readable and "list_entries" in recipe.scratch
    rows = recipe.features.queries_of(config.B_r)
    whose = {BATCH: "batch 0", HEAD: "head 0"}
    names = [name for bit, name in whose.items() if program.mask_depends & bit]
    return FunctionExplanation(
        program=program.lines,
        cuda=cuda_text(program, "Program", bias="bias" in recipe.steps[recipe.main].maps),
        tiles=view.tiles(rows, config.B_c) if has_lists else None,
        picture=view.picture() if readable else (),
        whose=f" in {' and '.join(names)}" if names else "",
    )


class MaskView:
    """The first head of a sequence with the most queries and keys of a problem."""

    def __init__(self, function: Function, problem: Problem) -> None:
        self._traced = function.traced
        self._problem = problem
        self._ahead = problem.seq_k - problem.seq_q
        left, right = problem.window or (math.inf, math.inf)
        self._left = math.inf if left is None or left < 0 else left
        self._right = 0 if problem.causal else math.inf if right is None or right < 0 else right
        self._shift = self._ahead if problem.seqused_k or problem.page_keys else 0

    def tiles(self, rows: int, keys: int) -> Tiles:
        """Count what is known of tiles; if there are many, of every n-th tile of queries."""
        of_queries = range(0, self._problem.seq_q, rows)
        of_keys = range(0, self._problem.seq_k, keys)
        step = max(1, len(of_queries) * len(of_keys) // MOST_VERDICTS)
        counts = Counter(
            self._verdict(q0, min(q0 + rows, self._problem.seq_q) - 1, k0, k1)
            for q0 in of_queries[::step]
            for k0 in of_keys
            for k1 in [min(k0 + keys, self._problem.seq_k) - 1]
        )
        return Tiles(*(counts[each] for each in (Verdict.EMPTY, Verdict.FULL, Verdict.PARTIAL)))

    def _verdict(self, q0: int, q1: int, k0: int, k1: int) -> Verdict:
        first, last = q0 + self._ahead, q1 + self._ahead
        if k0 > last + self._right or k1 < first - self._left:
            return Verdict.EMPTY
        found = verdict(self._traced, Tile(0, 0, q0 + self._shift, q1 + self._shift, k0, k1))
        whole = k1 <= first + self._right and k0 >= last - self._left
        return found if found != Verdict.FULL or whole else Verdict.PARTIAL

    def picture(self) -> tuple[str, ...]:
        """Draw which keys queries see, by some of each cell."""
        device = self._traced.tensors[0].device if self._traced.tensors else torch.device("cpu")
        queries = _places(self._problem.seq_q, ROWS, device)[:, None]
        keys = _places(self._problem.seq_k, COLUMNS, device)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        at = queries + self._ahead
        seen = see(self._traced, Coordinates(zero, zero, queries + self._shift, keys))
        seen = seen & (keys <= at + self._right) & (keys >= at - self._left)
        cells = seen.view(-1, SAMPLES, len(keys) // SAMPLES, SAMPLES).transpose(1, 2).flatten(2)
        every, some = cells.all(-1).tolist(), cells.any(-1).tolist()
        return tuple(
            "".join(SEEN if a else SOME if b else HIDDEN for a, b in zip(*row, strict=True))
            for row in zip(every, some, strict=True)
        )


def _places(size: int, most: int, device: torch.device) -> Tensor:
    """Return places, as many for every cell, of a line with up to `most` cells."""
    count = min(size, most) * SAMPLES
    return torch.arange(count, device=device) * size // max(1, count)
