# SPDX-License-Identifier: Apache-2.0
"""Single precision: exact operations, flushing of subnormals, comparisons with NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tests.emulator.conformance.case import Array, Case, Op, bits, elementwise, floats

SIZE = 384
SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, np.inf, -np.inf, np.nan)
EDGES = np.array([*SPECIAL, 1.0, -1.5, 1 + 2**-23, np.pi, 65504.0, 2.0**-24, 1e-38], np.float32)
LARGEST = 2.0**128 - 2.0**104
Floats = NDArray[np.float32]


def operands() -> tuple[Array, Array, Array]:
    """Every pair of edge values, then normal numbers over many scales."""
    rng = np.random.default_rng(11)
    values = np.ldexp(rng.standard_normal((3, SIZE)), rng.integers(-30, 30, (3, SIZE)))
    values = values.astype(np.float32)
    pairs = np.array(list(product(EDGES, EDGES)), np.float32)
    values[:2, : len(pairs)] = pairs.T
    with np.errstate(all="ignore"):
        values[2, :128] = -(values[0] * values[1])[:128]
    values[2, np.isnan(values[2])] = 1
    values[:, -32:] = _ties()
    a, b, c = bits(values)
    return a, b, c


def _ties() -> Floats:
    """Products half way between two floats, and what to add to them: too little for a double."""
    j = np.arange(32)
    factors = [np.full(32, 1 + 2.0**-12), 1 + (2 * j + 1) * 2.0**-12]
    return np.array([*factors, np.where(j % 4 < 2, 1, -1) * 2.0**-70], np.float32)


def flush(x: Floats) -> Floats:
    """Subnormals become zero of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def nearest(x: Fraction, digits: int = 24, lowest: int = -149, largest: float = LARGEST) -> float:
    """The float nearest to `x`, ties to even, of `digits` bits and multiples of 2^lowest."""
    if x == 0:
        return 0.0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    step = Fraction(2) ** max(exponent + 1 - digits, lowest)
    rounded = float(round(magnitude / step) * step)
    return math.copysign(rounded if rounded <= largest else math.inf, -1 if x < 0 else 1)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a b + c, rounded once."""
    with np.errstate(all="ignore"):
        results = (a.astype(np.float64) * b + c).astype(np.float32)
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(z):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            if exact:
                results[i] = nearest(exact)
    return results


def smaller(a: Floats, b: Floats) -> Floats:
    """The number if one is NaN; of two zeros the negative one."""
    chosen: Floats = np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))
    return chosen


def _on_floats(function: Callable[..., Floats], *, ftz: bool = False) -> Callable[..., Array]:
    def apply(*words: Array) -> Array:
        values = [flush(floats(w)) if ftz else floats(w) for w in words]
        with np.errstate(all="ignore"):
            result = function(*values)
        return bits(flush(result) if ftz else result)

    return apply


ARITHMETIC: list[tuple[str, str, Callable[..., Floats]]] = [
    ("add", "%1, %2", lambda a, b, c: a + b),
    ("sub", "%1, %2", lambda a, b, c: a - b),
    ("mul", "%1, %2", lambda a, b, c: a * b),
    ("min", "%1, %2", lambda a, b, c: smaller(a, b)),
    ("max", "%1, %2", lambda a, b, c: -smaller(-a, -b)),
]
ROUNDED = ("add", "sub", "mul")


def _arithmetic() -> list[Op]:
    ops = []
    for name, operands_text, function in ARITHMETIC:
        for ftz in (False, True):
            rounding = ".rn" if name in ROUNDED else ""
            full = f"{name}{rounding}{'.ftz' if ftz else ''}.f32"
            ops.append(_real(full, f"{full} %0, {operands_text};", function, ftz=ftz))
    return [*ops, _real("min.NaN.f32", "min.NaN.f32 %0, %1, %2;", _smaller_or_nan)]


def _smaller_or_nan(a: Floats, b: Floats, c: Floats) -> Floats:
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), smaller(a, b))


def _real(name: str, text: str, function: Callable[..., Floats], *, ftz: bool = False) -> Op:
    return Op(name, text, _on_floats(function, ftz=ftz), real=True)


OPS = [
    *_arithmetic(),
    _real("fma.rn.f32", "fma.rn.f32 %0, %1, %2, %3;", fused),
    _real("fma.rn.ftz.f32", "fma.rn.ftz.f32 %0, %1, %2, %3;", fused, ftz=True),
    _real("neg.f32", "neg.f32 %0, %1;", lambda a, b, c: -a),
    _real("abs.f32", "abs.f32 %0, %1;", lambda a, b, c: np.abs(a)),
    _real("rcp.rn.f32", "rcp.rn.f32 %0, %1;", lambda a, b, c: np.float32(1) / a),
    _real("div.rn.f32", "div.rn.f32 %0, %1, %2;", lambda a, b, c: a / b),
    _real("sqrt.rn.f32", "sqrt.rn.f32 %0, %1;", lambda a, b, c: np.sqrt(a)),
]

ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _compare(name: str, function: Callable[[Floats, Floats], Array], ftz: str = "") -> Op:
    def apply(a: Array, b: Array) -> Array:
        x, y = floats(a), floats(b)
        if ftz:
            x, y = flush(x), flush(y)
        unordered = np.isnan(x) | np.isnan(y)
        if name == "nan":
            return unordered
        if name == "num":
            return ~unordered
        return np.where(unordered, name.endswith("u"), function(x, y))

    text = f"{{.reg .pred p; setp.{name}{ftz}.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}}"
    return Op(f"setp.{name}{ftz}.f32", text, apply)


COMPARISONS = [
    *(_compare(name, function) for name, function in ORDERED.items()),
    *(_compare(f"{name}u", function) for name, function in ORDERED.items()),
    *(_compare(name, function, ".ftz") for name, function in ORDERED.items()),
    *(_compare(f"{name}u", function, ".ftz") for name, function in ORDERED.items()),
    _compare("nan", np.equal),
    _compare("num", np.equal),
]


def cases() -> list[Case]:
    a, b, c = operands()
    return [
        elementwise("float32", OPS, (a, b, c)),
        elementwise("float32 comparisons", COMPARISONS, (a, b)),
    ]
