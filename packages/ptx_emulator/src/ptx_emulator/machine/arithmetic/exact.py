# SPDX-License-Identifier: Apache-2.0
"""Sums and products of floats together with what they lose in rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # of floats


def sum_and_error(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, and what it lost in rounding, exactly."""
    total = a + b
    shown = total - a
    return total, (a - (total - shown)) + (b - shown)


def product_and_error(a: Array, b: Array) -> tuple[Array, Array]:
    """The product in double, and what it lost in rounding, unless that underflows."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(error), error, 0.0)


def _split(x: Array) -> tuple[Array, Array]:
    """Two numbers of half the digits whose sum it is."""
    scaled = x * np.float64((1 << 27) + 1)
    high = scaled - (scaled - x)
    return high, x - high


def to_odd(rounded: Array, lost: Array) -> Array:
    """Where something was lost, the neighbour whose last bit is set."""
    bits = rounded.view(f"u{rounded.dtype.itemsize}")
    even = np.isfinite(lost + 0 * rounded) & (lost != 0) & (bits & 1 == 0)
    toward = np.copysign(np.inf, lost).astype(rounded.dtype)
    return np.where(even, np.nextafter(rounded, toward), rounded)
