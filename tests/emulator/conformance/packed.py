# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on pairs of 16-bit floats: every result is the exact one, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np

from tests.emulator.conformance.case import Array, Case, Op, elementwise
from tests.emulator.conformance.float32 import Floats, nearest

SIZE = 384
NAN = 0x7FFF
FORMATS = {"f16": (11, -24, 65504.0), "bf16": (8, -133, float(2**128 - 2**120))}
EDGES = {
    "f16": [0, 0x8000, 1, 0x83FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0x3C01],
    "bf16": [0, 0x8000, 1, 0x807F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F80, 0x3F81],
}


def to_floats(halves: Array, dtype: str) -> Floats:
    if dtype == "f16":
        return halves.astype(np.uint16).view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def to_halves(values: Floats, dtype: str) -> Array:
    """Values that the format holds."""
    if dtype == "f16":
        halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), NAN, halves).astype(np.uint32)


def operands(dtype: str) -> tuple[Array, Array, Array]:
    """Every pair of edge values, then numbers of many scales; some products are ties."""
    rng = np.random.default_rng(15)
    values = np.ldexp(rng.standard_normal((3, SIZE, 2)), rng.integers(-9, 9, (3, SIZE, 2)))
    if dtype == "f16":
        halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    pairs = np.array(list(product(EDGES[dtype], EDGES[dtype])), np.uint16)
    halves[0, : len(pairs)], halves[1, : len(pairs)] = pairs, pairs[:, ::-1]
    tiny = {"f16": 0x0001, "bf16": 0x0080}[dtype]  # it decides a tie, and float32 loses it
    halves[2, -64:] = tiny
    halves[0, -64:], halves[1, -64:] = _factors_of_ties(dtype)
    words = np.ascontiguousarray(halves).view(np.uint32)[..., 0]
    return words[0], words[1], words[2]


def _factors_of_ties(dtype: str) -> tuple[Array, Array]:
    """Pairs of factors from 1 to 2 whose products, of 2 or more, lie between two numbers."""
    digits, one = FORMATS[dtype][0], EDGES[dtype][-2]
    fractions = np.arange(1 << digits - 1)
    products = np.multiply.outer(fractions + (1 << digits - 1), fractions + (1 << digits - 1))
    halfway = products % (1 << digits) == 1 << digits - 1
    x, y = np.nonzero(halfway & (products >= 1 << 2 * digits - 1))
    chosen = np.linspace(0, len(x) - 1, 128).astype(int)
    return (x[chosen] + one).reshape(64, 2), (y[chosen] + one).reshape(64, 2)


def exactly(dtype: str, function: Callable[..., Fraction]) -> Callable[..., Array]:
    """The function on both halves of every word; NumPy says what infinities and NaN give."""

    def on_halves(*halves: Array) -> Array:
        values = [to_floats(half, dtype) for half in halves]
        with np.errstate(all="ignore"):
            results = np.asarray(function(*(value.astype(np.float64) for value in values)))
            results = results.astype(np.float32)
        for i, numbers in enumerate(zip(*values, strict=True)):
            if np.isfinite(numbers).all():
                exact = function(*(Fraction(float(number)) for number in numbers))
                if exact:
                    results[i] = nearest(exact, *FORMATS[dtype])
        return to_halves(results, dtype)

    def apply(*words: Array) -> Array:
        low, high = (on_halves(*(word >> shift & 0xFFFF for word in words)) for shift in (0, 16))
        both: Array = low | high << 16
        return both

    return apply


OPERATIONS: dict[str, tuple[str, Callable[..., Fraction]]] = {
    "add.rn": ("%1, %2", lambda a, b, c: a + b),
    "sub.rn": ("%1, %2", lambda a, b, c: a - b),
    "mul.rn": ("%1, %2", lambda a, b, c: a * b),
    "fma.rn": ("%1, %2, %3", lambda a, b, c: a * b + c),
}


def chosen(dtype: str, larger: bool) -> Callable[..., Array]:
    """The larger or smaller element of each pair by its bits, which are in order of size once signs
    are turned; NaN if one is."""

    def on_elements(x: Array, y: Array) -> Array:
        places = [np.where(h & 0x8000, 0xFFFF - h, 0x8000 + h) for h in (x, y)]
        nan = np.isnan(to_floats(x, dtype)) | np.isnan(to_floats(y, dtype))
        first = places[0] > places[1] if larger else places[0] < places[1]
        return np.where(nan, NAN, np.where(first, x, y))

    def apply(a: Array, b: Array, c: Array) -> Array:
        low, high = (on_elements(a >> shift & 0xFFFF, b >> shift & 0xFFFF) for shift in (0, 16))
        both: Array = (low | high << 16).astype(np.uint32)
        return both

    return apply


CHOSEN = [("max", "f16"), ("min", "f16"), ("min", "bf16")]


def cases() -> list[Case]:
    made = []
    for name, dtype in CHOSEN:
        text = f"{name}.NaN.{dtype}x2"
        op = Op(text, f"{text} %0, %1, %2;", chosen(dtype, name == "max"))
        made.append(elementwise(f"{name} of {dtype}", [op], operands(dtype), arch="sm_90a"))
    for dtype in FORMATS:
        ops = [
            Op(f"{name}.{dtype}x2", f"{name}.{dtype}x2 %0, {text};", exactly(dtype, function))
            for name, (text, function) in OPERATIONS.items()
        ]
        made.append(elementwise(f"pairs of {dtype}", ops, operands(dtype), arch="sm_90a"))
    return made
