# SPDX-License-Identifier: Apache-2.0
"""Drawing problems by seed.

What decides which kernel is compiled comes from a fixed menu, so that thousands of problems share
some hundred kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import TypeVar

from flash_attention.families.sm90.forward.config import D_HEADS as HOPPER_D_HEADS
from tests.random_problems.problem import (
    FEATURES,
    FIRST_FAMILY_FEATURES,
    LAYOUTS,
    OUTPUTS,
    SHORT,
    VALUES,
    RandomProblem,
    first_entries,
    fitted,
    halved,
    whole_blocks,
    without,
)

PAGES = (1, 3, 16, 24, 64, 256)
WIDTHS = tuple(sorted(HOPPER_D_HEADS))
CORNERS = (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 1023, 1024, 1025)
SPLIT = 64  # splits of keys are multiples of it

Item = TypeVar("Item")


@dataclass(frozen=True)
class Size:
    """How large problems are, and how many kinds of kernels they need."""

    name: str
    longest: int
    batch: int
    heads_k: int
    scores: int
    kinds: int
    groups: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)


SMALL = Size("small", 200, 3, 3, 1 << 16, 20)
LARGE = Size("large", 4096, 8, 8, 1 << 26, 80)


@dataclass(frozen=True)
class Kind:
    """What decides which kernel is compiled, but for lengths."""

    dtype: str
    width: int  # the kernel's d_head
    mask: str
    softcap: bool
    own_lengths: bool  # every batch entry has its own
    page: int  # where there are pages
    group: int


@cache
def kinds(size: Size) -> tuple[Kind, ...]:
    """The menu: in every column each value as often as the others, put together at random."""
    random = Random(f"kinds of {size.name} problems")

    def column(values: tuple[Item, ...]) -> list[Item]:
        entries = [values[i % len(values)] for i in range(size.kinds)]
        random.shuffle(entries)
        return entries

    columns = (
        column(("bf16", "fp16")),
        column(WIDTHS),
        column(("full", "causal", "window")),
        column((False, False, True)),
        column((False, True)),
        column((*PAGES, *(0,) * len(PAGES))),
        column(size.groups),
    )
    return tuple(Kind(*row) for row in zip(*columns, strict=True))


def draw(seed: int, size: Size, family: str = "sm90") -> RandomProblem:
    """The problem of a seed."""
    random = Random(f"{family} {size.name} {seed}")
    kind = random.choice(kinds(size))
    d, d_v = _columns(random, kind.width)
    problem = RandomProblem(
        seed,
        heads_k=random.randint(1, size.heads_k),
        group=kind.group,
        d=d,
        d_v=d_v,
        dtype=kind.dtype,
        family=family,
        softcap=random.choice((0.5, 5.0, 30.0)) if kind.softcap else 0.0,
        softmax_scale=random.choice((None, None, round(2 * d**-0.5, 4), round(0.3 * d**-0.5, 4))),
        sinks=random.random() < 0.3,
        return_lse=random.random() < 0.5,
        out=random.choice(OUTPUTS),
        layout=random.choice(LAYOUTS),
        values=random.choice(VALUES),
    )
    problem = _with_mask(random, kind, _with_lengths(random, size, kind, problem))
    if family == "sm80":
        problem = without(problem, frozenset(FEATURES) - FIRST_FAMILY_FEATURES)
    return _bounded(problem, size)


def _columns(random: Random, width: int) -> tuple[int, int]:
    """d and d_v, whose larger one needs a kernel of this d_head."""
    narrower = max((w for w in WIDTHS if w < width), default=0)
    wide = random.choice((width, random.randrange(narrower + 8, width + 1, 8)))
    other = random.choice((wide, random.randrange(8, wide + 1, 8)))
    return (wide, other) if random.random() < 0.5 else (other, wide)


def _length(random: Random, longest: int) -> int:
    """Corners, multiples of a block, and anything, short lengths as often as long ones."""
    way = random.randrange(4)
    if way == 0:
        return random.choice([n for n in CORNERS if n <= longest])
    if way == 1 and longest >= 64:
        return 64 * random.randint(1, longest // 64)
    if way == 2:
        return random.randint(1, longest)
    return int(longest ** random.random())


def _lengths(random: Random, longest: int, batch: int) -> tuple[int, ...]:
    return tuple(0 if random.random() < 0.1 else _length(random, longest) for _ in range(batch))


def _with_lengths(random: Random, size: Size, kind: Kind, problem: RandomProblem) -> RandomProblem:
    batch = random.randint(1, size.batch)
    short = random.random() < 0.35
    most_q = SHORT if short else size.longest
    seq_k = 0 if random.random() < 0.02 else _length(random, size.longest)
    alike = not short and random.random() < 0.4
    seq_q = seq_k if alike else 0 if random.random() < 0.02 else _length(random, most_q)
    split = random.choice((None, SPLIT * random.randint(1, 8))) if short else None
    problem = replace(problem, seq_q=seq_q, seq_k=seq_k, batch=batch, split_keys=split)
    if not kind.own_lengths:
        return problem
    page = kind.page if random.random() < 0.8 else 0
    packed_q, packed_k = random.random() < 0.6, not page and random.random() < 0.6
    if packed_q:
        problem = replace(problem, seq_q=_lengths(random, most_q, batch))
    if packed_k:
        problem = replace(problem, seq_k=_lengths(random, size.longest, batch))
        if packed_q and alike:
            problem = replace(problem, seq_q=problem.lengths_k)
    if page or not (packed_q or packed_k) or random.random() < 0.3:
        used = tuple(random.choice((n, random.randint(0, n))) for n in problem.lengths_k)
        problem = replace(problem, used=used)
    if packed_q or packed_k:
        problem = replace(problem, spare=random.choice((0, 0, 5)))
    return fitted(replace(problem, page=page))


def _with_mask(random: Random, kind: Kind, problem: RandomProblem) -> RandomProblem:
    if kind.mask == "full":
        return problem
    if kind.mask == "causal":
        as_window = random.random() < 0.2
        return replace(problem, causal=not as_window, window=(None, 0) if as_window else None)

    def side() -> int:
        return random.choice((0, 1, random.randint(0, 64), _length(random, longest)))

    longest = max(CORNERS[3], *problem.lengths_k)
    unlimited = random.choice((None, -1))
    window = random.choice(
        ((side(), unlimited), (unlimited, 1 + side()), (side(), side()), (side(), 0))
    )
    return replace(problem, window=window, causal=window[0] not in (None, -1) and side() == 0)


def _bounded(problem: RandomProblem, size: Size) -> RandomProblem:
    """Fewer heads, then fewer entries, then shorter ones, until there are few enough scores."""
    while problem.scores > size.scores:
        if problem.heads_k > 1:
            problem = replace(problem, heads_k=problem.heads_k // 2)
        elif len(problem.lengths_q) > 1:
            problem = first_entries(problem, len(problem.lengths_q) // 2)
        elif problem.family == "sm80" and "cut blocks" not in FIRST_FAMILY_FEATURES:
            problem = whole_blocks(halved(problem))
            if max(problem.lengths_q) <= 128:
                return problem
        else:
            problem = halved(problem)
    return problem
