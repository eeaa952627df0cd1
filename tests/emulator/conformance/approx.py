# SPDX-License-Identifier: Apache-2.0
"""Instructions that PTX promises within some ulp only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.emulator.conformance.case import Array, Case, Op, bits, elementwise, floats
from tests.emulator.conformance.float32 import flush

SIZE = 512
LG2_ABSOLUTE = 2.0**-22  # where the logarithm is near zero


def operands() -> tuple[Array, Array]:
    rng = np.random.default_rng(12)
    x = np.ldexp(rng.standard_normal(SIZE), rng.integers(-8, 8, SIZE)).astype(np.float32)
    y = np.ldexp(rng.standard_normal(SIZE), rng.integers(-40, 40, SIZE)).astype(np.float32)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 127.5, 128.0, -126.0, -127.0]
    edges += [-149.0, -150.5, 1e-42, -1e-42, 2.0**-126, 3e38, 2.0**127, 0.5, -24.0]
    x[: len(edges)] = edges
    y[: len(edges)] = edges[::-1]
    return bits(x), bits(y)


def _wide(function: Callable[..., Array], *, ftz: bool) -> Callable[..., Array]:
    """The function in double precision, rounded once to float32."""

    def apply(*words: Array) -> Array:
        values = [flush(floats(w)) if ftz else floats(w) for w in words]
        with np.errstate(all="ignore"):
            result = function(*(v.astype(np.float64) for v in values)).astype(np.float32)
        return bits(flush(result) if ftz else result)

    return apply


OPS = [
    Op("ex2.approx.ftz", "ex2.approx.ftz.f32 %0, %1;", _wide(lambda a, b: np.exp2(a), ftz=True), 2),
    Op("ex2.approx", "ex2.approx.f32 %0, %1;", _wide(lambda a, b: np.exp2(a), ftz=False), 2),
    Op(
        "lg2.approx.ftz",
        "lg2.approx.ftz.f32 %0, %1;",
        _wide(lambda a, b: np.log2(a), ftz=True),
        2,
        LG2_ABSOLUTE,
    ),
    Op(
        "lg2.approx",
        "lg2.approx.f32 %0, %1;",
        _wide(lambda a, b: np.log2(a), ftz=False),
        2,
        LG2_ABSOLUTE,
    ),
    Op("rcp.approx.ftz", "rcp.approx.ftz.f32 %0, %1;", _wide(lambda a, b: 1 / a, ftz=True), 1),
    Op(
        "rsqrt.approx.ftz",
        "rsqrt.approx.ftz.f32 %0, %1;",
        _wide(lambda a, b: 1 / np.sqrt(a), ftz=True),
        2,
    ),
    Op(
        "sqrt.approx.ftz",
        "sqrt.approx.ftz.f32 %0, %1;",
        _wide(lambda a, b: np.sqrt(a), ftz=True),
        2,
    ),
]


def _quotients() -> tuple[Array, Array]:
    """Divisors over the whole range for which div.full promises its two ulp."""
    rng = np.random.default_rng(13)
    a = np.ldexp(rng.standard_normal(SIZE), rng.integers(-20, 20, SIZE)).astype(np.float32)
    b = np.ldexp(rng.uniform(1, 2, SIZE), rng.integers(-100, 100, SIZE)).astype(np.float32)
    a[:6] = [0.0, -0.0, np.inf, np.nan, 1.0, -1.0]
    b[:6] = [3.0, 3.0, 2.0, 1.0, np.inf, 0.0]
    return bits(a), bits(b)


DIVISION = [
    Op("div.full.ftz", "div.full.ftz.f32 %0, %1, %2;", _wide(lambda a, b: a / b, ftz=True), 2),
    Op("div.full", "div.full.f32 %0, %1, %2;", _wide(lambda a, b: a / b, ftz=False), 2),
]


def _beyond_the_reciprocal() -> tuple[Array, Array]:
    """Divisors whose reciprocals are subnormal, beside the largest whose are not."""
    rng = np.random.default_rng(16)
    a = np.ldexp(rng.standard_normal(SIZE), rng.integers(-20, 127, SIZE)).astype(np.float32)
    b = np.ldexp(rng.uniform(1, 2, SIZE), rng.integers(90, 128, SIZE)).astype(np.float32)
    b *= rng.choice(np.array([1, -1], np.float32), SIZE)
    a[:8] = [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 0.0, -0.0, 1.0]
    b[:4], b[4:8] = 1.5 * 2.0**126, -(2.0**127)
    a[8:10], b[8:10] = 2.0**126, [2.0**126, np.nextafter(np.float32(2.0**126), np.float32(np.inf))]
    return bits(a), bits(b)


def _by_reciprocal(a: Array, b: Array) -> Array:
    """a / b, and a times zero where b is beyond 2^126."""
    return np.where(np.abs(b) > 2.0**126, a * np.copysign(0.0, b), a / b)


FAST_DIVISION = [
    Op("div.approx.ftz", "div.approx.ftz.f32 %0, %1, %2;", _wide(_by_reciprocal, ftz=True), 2),
    Op("div.approx", "div.approx.f32 %0, %1, %2;", _wide(_by_reciprocal, ftz=False), 2),
]


def cases() -> list[Case]:
    return [
        elementwise("approximate functions", OPS, operands()),
        elementwise("approximate division", DIVISION, _quotients()),
        elementwise("division by reciprocals", FAST_DIVISION, _beyond_the_reciprocal()),
    ]
