# SPDX-License-Identifier: Apache-2.0
"""Random attention problems over everything that `attention` takes.

A problem prints as the Python call that makes it again. What decides which kernel is compiled comes
from a fixed menu, so that thousands of problems share some hundred kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import TypeVar

from flash_attention.kernel_configs.hopper_rules import CHOICES as HOPPER_CHOICES

FAMILIES = ("sm90", "sm80")
LAYOUTS = ("contiguous", "heads first", "fused", "expanded", "gaps")
VALUES = ("normal", "large", "tiny", "outliers", "shifted", "rising", "falling")
OUTPUTS = ("new", "given", "guarded")
PAGES = (16, 32, 64, 128, 192, 256)
WIDTHS = tuple(sorted(HOPPER_CHOICES["d_head"]))
CORNERS = (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 1023, 1024, 1025)
SHORT = 16  # queries of a short problem, at most
SPLIT = 64  # chunks of keys are multiples of it

Lengths = int | tuple[int, ...]
Window = tuple[int | None, int | None]
Item = TypeVar("Item")


@dataclass(frozen=True, repr=False)
class RandomProblem:
    """One call of `attention`. A tuple of lengths makes a packed tensor, an int one of `batch`
    entries. The seed fixes the values of the tensors on a given kind of device."""

    seed: int
    seq_q: Lengths = 64
    seq_k: Lengths = 64
    batch: int = 1
    heads_k: int = 1
    group: int = 1  # heads of q that share one of k and v
    d: int = 64
    d_v: int = 64
    dtype: str = "bf16"
    family: str = "sm90"
    causal: bool = False
    window: Window | None = None
    softcap: float = 0.0
    softmax_scale: float | None = None
    sinks: bool = False
    used: tuple[int, ...] | None = None  # seqused_k; NaN lies behind
    page: int = 0  # keys of a page; 0: keys are not in pages
    spare: int = 0  # rows of no entry before and behind those of packed tensors
    split_keys: int | None = None
    return_lse: bool = False
    out: str = "new"
    layout: str = "contiguous"
    values: str = "normal"

    def __repr__(self) -> str:
        given = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"RandomProblem({', '.join(given)})"

    @property
    def heads(self) -> int:
        return self.heads_k * self.group

    @property
    def lengths_q(self) -> tuple[int, ...]:
        """Queries of every batch entry."""
        return (self.seq_q,) * self.batch if isinstance(self.seq_q, int) else self.seq_q

    @property
    def lengths_k(self) -> tuple[int, ...]:
        """Keys of every batch entry, whether they count or not."""
        return (self.seq_k,) * self.batch if isinstance(self.seq_k, int) else self.seq_k

    @property
    def scores(self) -> int:
        """Scores of all heads, none of them masked."""
        return self.heads * sum(q * k for q, k in zip(self.lengths_q, self.lengths_k, strict=True))

    def features(self) -> frozenset[str]:
        """What the problem has beyond plain attention."""
        return frozenset(name for name, has in FEATURES.items() if has(self))


def _sides(problem: RandomProblem) -> tuple[bool, bool]:
    """Which sides of the window have a limit."""
    left, right = (side is not None and side >= 0 for side in problem.window or (None, None))
    return left, right


def _says(field: str, value: str) -> Callable[[RandomProblem], bool]:
    return lambda problem: bool(getattr(problem, field) == value)


FEATURES: dict[str, Callable[[RandomProblem], bool]] = {
    "half precision": lambda p: p.dtype == "fp16",
    "packed queries": lambda p: not isinstance(p.seq_q, int),
    "packed keys": lambda p: not isinstance(p.seq_k, int),
    "rows of no entry": lambda p: p.spare > 0,
    "an empty entry": lambda p: 0 in (*p.lengths_q, *p.lengths_k, *(p.used or ())),
    "more keys than queries": lambda p: max(p.lengths_k) > max(p.lengths_q),
    "more queries than keys": lambda p: max(p.lengths_q) > max(p.lengths_k),
    "cut blocks": lambda p: any(n % 128 or not n for n in (*p.lengths_q, *p.lengths_k)),
    "shared heads": lambda p: p.group > 1,
    "another d": lambda p: p.d not in (64, 128),
    "another d_v": lambda p: p.d_v != p.d,
    "causal": lambda p: p.causal,
    "window to the left": lambda p: _sides(p) == (True, False),
    "window to the right": lambda p: _sides(p) == (False, True),
    "window to both sides": lambda p: _sides(p) == (True, True),
    "softcap": lambda p: p.softcap > 0,
    "scale": lambda p: p.softmax_scale is not None,
    "sinks": lambda p: p.sinks,
    "seqused_k": lambda p: p.used is not None,
    "pages": lambda p: p.page > 0,
    "short queries": lambda p: 0 < max(p.lengths_q) <= SHORT,
    "split_keys": lambda p: p.split_keys is not None,
    "lse": lambda p: p.return_lse,
    **{f"output {name}": _says("out", name) for name in OUTPUTS[1:]},
    **{f"layout {name}": _says("layout", name) for name in LAYOUTS[1:]},
    **{f"values {name}": _says("values", name) for name in VALUES[1:]},
}
"""By name, whether a problem has it."""

SIMPLER: dict[str, Callable[[RandomProblem], RandomProblem]] = {
    "packed queries": lambda p: replace(p, seq_q=max(p.lengths_q), batch=len(p.lengths_q)),
    "packed keys": lambda p: replace(p, seq_k=max(p.lengths_k), batch=len(p.lengths_k)),
    "rows of no entry": lambda p: replace(p, spare=0),
    "split_keys": lambda p: replace(p, split_keys=None),
    "pages": lambda p: replace(p, page=0),
    "seqused_k": lambda p: replace(p, used=None, page=0),
    "causal": lambda p: replace(p, causal=False),
    "window to the left": lambda p: replace(p, window=None),
    "window to the right": lambda p: replace(p, window=None),
    "window to both sides": lambda p: replace(p, window=None),
    "softcap": lambda p: replace(p, softcap=0.0),
    "scale": lambda p: replace(p, softmax_scale=None),
    "sinks": lambda p: replace(p, sinks=False),
    "lse": lambda p: replace(p, return_lse=False),
    "shared heads": lambda p: replace(p, group=1),
    "more keys than queries": lambda p: _alike(p),
    "more queries than keys": lambda p: _alike(p),
    "cut blocks": lambda p: _whole_blocks(p),
    "another d": lambda p: replace(p, d=128 if p.d > 64 else 64),
    "another d_v": lambda p: replace(p, d_v=p.d),
    "half precision": lambda p: replace(p, dtype="bf16"),
    **{f"output {name}": lambda p: replace(p, out="new") for name in OUTPUTS[1:]},
    **{f"layout {name}": lambda p: replace(p, layout="contiguous") for name in LAYOUTS[1:]},
    **{f"values {name}": lambda p: replace(p, values="normal") for name in VALUES[1:]},
}
"""The same problem without a feature; one that has no entry of its own goes with the others."""

FIRST_FAMILY_FEATURES = frozenset(
    name
    for name in FEATURES
    if name in ("half precision", "scale") or name.startswith(("output", "layout", "values"))
)
"""What kernels of the first family take."""


def _alike(problem: RandomProblem) -> RandomProblem:
    if isinstance(problem.seq_q, int) or isinstance(problem.seq_k, int):
        longest = max(*problem.lengths_q, *problem.lengths_k)
        return replace(problem, seq_q=longest, seq_k=longest, batch=len(problem.lengths_q))
    return replace(problem, seq_q=problem.seq_k)


def _whole_blocks(problem: RandomProblem) -> RandomProblem:
    """Every length rounded up to a multiple of 128."""

    def up(length: int) -> int:
        return max(1, -(-length // 128)) * 128

    return _each_length(problem, up)


def fitted(problem: RandomProblem) -> RandomProblem:
    """A changed problem whose parts fit together again."""
    if problem.page and isinstance(problem.seq_k, int):
        pages = -(-problem.seq_k // problem.page)
        problem = replace(problem, seq_k=pages * problem.page)
    if problem.used is not None:
        used = zip(problem.used, problem.lengths_k, strict=True)
        problem = replace(problem, used=tuple(min(pair) for pair in used))
    packed = not (isinstance(problem.seq_q, int) and isinstance(problem.seq_k, int))
    if not isinstance(problem.seq_q, int):
        problem = replace(problem, split_keys=None)
    return problem if packed else replace(problem, spare=0)


def without(problem: RandomProblem, features: frozenset[str]) -> RandomProblem:
    """The problem with no more than the other features."""
    for name, simpler in SIMPLER.items():
        if name in features and FEATURES[name](problem):
            problem = fitted(simpler(problem))
    return problem


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


SMALL = Size("small", 200, 3, 3, 1 << 16, 32)
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
            problem = _whole_blocks(halved(problem))
            if max(problem.lengths_q) <= 128:
                return problem
        else:
            problem = halved(problem)
    return problem


def first_entries(problem: RandomProblem, count: int) -> RandomProblem:
    """The first entries of the batch."""
    return replace(
        problem,
        batch=count,
        seq_q=problem.seq_q if isinstance(problem.seq_q, int) else problem.seq_q[:count],
        seq_k=problem.seq_k if isinstance(problem.seq_k, int) else problem.seq_k[:count],
        used=None if problem.used is None else problem.used[:count],
    )


def halved(problem: RandomProblem) -> RandomProblem:
    """All lengths halved."""
    used = None if problem.used is None else tuple(n // 2 for n in problem.used)
    return fitted(_each_length(replace(problem, used=used), lambda n: n // 2))


def _each_length(problem: RandomProblem, change: Callable[[int], int]) -> RandomProblem:
    def changed(lengths: Lengths) -> Lengths:
        return change(lengths) if isinstance(lengths, int) else tuple(map(change, lengths))

    return replace(problem, seq_q=changed(problem.seq_q), seq_k=changed(problem.seq_k))
