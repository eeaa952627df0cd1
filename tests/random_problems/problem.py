# SPDX-License-Identifier: Apache-2.0
"""Problems over everything that `attention` takes: what each has, and the same without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

LAYOUTS = ("contiguous", "heads first", "fused", "expanded", "gaps")
VALUES = ("normal", "large", "tiny", "outliers", "shifted", "rising", "falling")
OUTPUTS = ("new", "given", "guarded")
SHORT = 16  # queries of a short problem, at most

Lengths = int | tuple[int, ...]
Window = tuple[int | None, int | None]


@dataclass(frozen=True, repr=False)
class RandomProblem:
    """One call of `attention`. A tuple of lengths makes a packed tensor, an int one of `batch`
    entries. The seed fixes the values of the tensors on a given kind of device. A problem prints as
    the Python call that makes it again."""

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
    "decode": lambda p: 0 < max(p.lengths_q) <= SHORT,
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
    "cut blocks": lambda p: whole_blocks(p),
    "another d": lambda p: replace(p, d=128 if p.d > 64 else 64),
    "another d_v": lambda p: replace(p, d_v=p.d),
    "half precision": lambda p: replace(p, dtype="bf16"),
    **{f"output {name}": lambda p: replace(p, out="new") for name in OUTPUTS[1:]},
    **{f"layout {name}": lambda p: replace(p, layout="contiguous") for name in LAYOUTS[1:]},
    **{f"values {name}": lambda p: replace(p, values="normal") for name in VALUES[1:]},
}
"""The same problem without a feature; one that has no entry of its own goes with the others."""

FIRST_FAMILY_FEATURES = frozenset(FEATURES) - {"split_keys"}
"""What sm_80 kernels take."""


def _alike(problem: RandomProblem) -> RandomProblem:
    if isinstance(problem.seq_q, int) or isinstance(problem.seq_k, int):
        longest = max(*problem.lengths_q, *problem.lengths_k)
        return replace(problem, seq_q=longest, seq_k=longest, batch=len(problem.lengths_q))
    return replace(problem, seq_q=problem.seq_k)


def whole_blocks(problem: RandomProblem) -> RandomProblem:
    """Every length rounded up to a multiple of 128, and pages that divide it."""
    if 128 % (problem.page or 1):
        problem = replace(problem, page=16)

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
