# SPDX-License-Identifier: Apache-2.0
"""Results that are not rounded to the nearest: to zero (rz), down (rm) or up (rp)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx_emulator.machine.arithmetic.exact import product_and_error, sum_and_error
from ptx_emulator.machine.arithmetic.numerics import fma_64

Array = Any  # of floats

TOWARD = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}


def directed(name: str, mode: str, *sources: Array) -> Array:
    """A sum, difference, product, quotient, root or fma of one type of floats."""
    if sources[0].dtype == np.float64:
        near, beyond = _DOUBLES[name](*sources)
    else:
        exact, lost = _SINGLES[name](*(source.astype(np.float64) for source in sources))
        near = exact.astype(np.float32)
        beyond = np.where(exact == near, -lost, near - exact)
    if mode == "rm" and name in _NEGATIVE:
        near = np.where((near == 0) & (beyond == 0) & _NEGATIVE[name](*sources), -0.0, near)
        near = near.astype(sources[0].dtype, copy=False)
    return _toward(mode, near, beyond)


def converted(value: Array, mode: str, target: Any) -> Array:
    """A number as a float of another type."""
    near = value.astype(target)
    if value.dtype.kind == "f":
        return _toward(mode, near, near.astype(np.float64) - value)
    low = (value.astype(np.int64) & 0xFFFFFFFF).astype(np.float64)
    high = (value >> 32 if value.dtype.itemsize == 8 else value * 0).astype(np.float64) * 2.0**32
    if value.dtype.itemsize < 8:
        low = value.astype(np.float64)
    total, lost = sum_and_error(near.astype(np.float64), -high)
    rest, more = sum_and_error(total, -low)
    return _toward(mode, near, rest + (lost + more))


def _toward(mode: str, near: Array, beyond: Array) -> Array:
    """The neighbour where the nearest is `beyond` the exact result, on the wrong side."""
    wrong = {
        "rm": beyond > 0,
        "rp": beyond < 0,
        "rz": np.where(near > 0, beyond > 0, beyond < 0),
    }[mode]
    return np.where(wrong, np.nextafter(near, near.dtype.type(TOWARD[mode])), near)


# Where a sum that is exactly zero is -0 if it is rounded down: its terms have opposite signs.
_NEGATIVE: dict[str, Callable[..., Array]] = {
    "add": lambda a, b: np.signbit(a) != np.signbit(b),
    "sub": lambda a, b: np.signbit(a) == np.signbit(b),
    "fma": lambda a, b, c: (np.signbit(a) != np.signbit(b)) != np.signbit(c),
    "mad": lambda a, b, c: (np.signbit(a) != np.signbit(b)) != np.signbit(c),
}


def _fma(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    return sum_and_error(a * b, c)


# The result in double of singles, and what it lost; a quotient or a root is never that close to a
# single without being one.
_SINGLES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "add": lambda a, b: sum_and_error(a, b),
    "sub": lambda a, b: sum_and_error(a, -b),
    "mul": lambda a, b: (a * b, np.zeros_like(a)),
    "fma": _fma,
    "mad": _fma,
    "div": lambda a, b: (a / b, np.zeros_like(a)),
    "rcp": lambda a: (1 / a, np.zeros_like(a)),
    "sqrt": lambda a: (np.sqrt(a), np.zeros_like(a)),
}


def _double_sum(a: Array, b: Array) -> tuple[Array, Array]:
    near, lost = sum_and_error(a, b)
    return near, -lost


def _double_product(a: Array, b: Array) -> tuple[Array, Array]:
    near, lost = product_and_error(a, b)
    return near, -lost


def _double_fma(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    near = fma_64(a, b, c)
    product, low = product_and_error(a, b)
    total, lost = sum_and_error(product, c)
    return near, (near - total) - (lost + low)


def _double_quotient(a: Array, b: Array) -> tuple[Array, Array]:
    near = a / b
    return near, fma_64(near, b, -a) * np.sign(b)


def _double_root(a: Array) -> tuple[Array, Array]:
    near = np.sqrt(a)
    return near, fma_64(near, near, -a)


# The nearest double, and by how much it is beyond the exact result.
_DOUBLES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "add": _double_sum,
    "sub": lambda a, b: _double_sum(a, -b),
    "mul": _double_product,
    "fma": _double_fma,
    "mad": _double_fma,
    "div": _double_quotient,
    "rcp": lambda a: _double_quotient(np.ones_like(a), a),
    "sqrt": _double_root,
}
