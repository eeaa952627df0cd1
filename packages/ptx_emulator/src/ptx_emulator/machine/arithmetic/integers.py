# SPDX-License-Identifier: Apache-2.0
"""Integer instructions that NumPy has no function for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any  # of the element type that the instruction says

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper 64 bits of a product of 64-bit integers, from products of their halves."""
    x, y = a.view(np.uint64), b.view(np.uint64)
    x_low, x_high, y_low, y_high = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x_high * y_low + (x_low * y_low >> _HALF)
    other = x_low * y_high + (middle & _LOW)
    high = x_high * y_high + (middle >> _HALF) + (other >> _HALF)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def highest_bit(x: Array, as_shift: bool) -> Array:
    """Where the highest bit is that differs from the sign; as a shift that brings it to the top."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    size = np.where(x < 0, ~x, x).astype(unsigned) if x.dtype.kind == "i" else x
    zeros = leading_zeros(np.ascontiguousarray(size))
    width = 8 * x.dtype.itemsize
    place = zeros if as_shift else width - 1 - zeros
    return np.where(zeros == width, 0xFFFFFFFF, place).astype(np.uint32)


def absolute_difference(a: Array, b: Array, c: Array) -> Array:
    return c + (np.maximum(a, b) - np.minimum(a, b))


def dot_of_bytes(a: Array, b: Array, c: Array, a_type: str, b_type: str) -> Array:
    """c and the products of the four bytes of every word, which are signed or not."""
    left, right = (
        word.view(np.int8 if kind == "s32" else np.uint8).reshape(-1, 4).astype(np.int64)
        for word, kind in ((a, a_type), (b, b_type))
    )
    return c + (left * right).sum(axis=1).astype(np.int32).view(c.dtype)


def _bit_matrix(x: Array) -> NDArray[np.uint8]:
    """Bits of every element, most significant first."""
    width = x.dtype.itemsize
    return np.unpackbits(x.view(np.uint8).reshape(-1, width)[:, ::-1], axis=1)


def count_ones(x: Array) -> Array:
    return _bit_matrix(x).sum(axis=1)


def leading_zeros(x: Array) -> Array:
    bits = _bit_matrix(x)
    return np.where(bits.any(axis=1), bits.argmax(axis=1), bits.shape[1])


def reverse_bits(x: Array) -> Array:
    packed = np.packbits(_bit_matrix(x)[:, ::-1], axis=1)
    return np.ascontiguousarray(packed[:, ::-1]).view(x.dtype).reshape(-1)
