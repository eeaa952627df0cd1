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


def dot_of_halves(a: Array, b: Array, c: Array, a_type: str, b_type: str, side: str) -> Array:
    """c and the products of the two halves of a with the lower or upper two bytes of b."""
    left = a.view(np.int16 if a_type == "s32" else np.uint16).reshape(-1, 2).astype(np.int64)
    right = b.view(np.int8 if b_type == "s32" else np.uint8).reshape(-1, 4).astype(np.int64)
    chosen = right[:, :2] if side == "lo" else right[:, 2:]
    return c + (left * chosen).sum(axis=1).astype(np.int32).view(c.dtype)


def differences_of_bytes(a: Array, b: Array, c: Array, add: bool) -> Array:
    """The differences of the unsigned bytes of every word, in bytes; or c and their sum."""
    left, right = (word.view(np.uint8).reshape(-1, 4) for word in (a, b))
    apart = np.maximum(left, right) - np.minimum(left, right)
    return c + apart.sum(axis=1, dtype=np.uint32) if add else apart.view(np.uint32).reshape(-1)


def sum_and_carry(a: Array, b: Array, comes_in: Array) -> tuple[Array, Array]:
    """The sum of unsigned integers and a carry, and whether there is one out."""
    first = a + b
    total = first + comes_in
    return total, (first < a) | (total < first)


def difference_and_borrow(a: Array, b: Array, comes_in: Array) -> tuple[Array, Array]:
    """The difference of unsigned integers less a borrow, and whether there is one out."""
    first = a - b
    total = first - comes_in
    return total, (a < b) | (total > first)


def bit_mask(first: Array, length: Array, mode: str) -> Array:
    """Ones from bit `first` on; what lies beyond the word is wrapped or cut."""
    begin, count = first.astype(np.uint64), length.astype(np.uint64)
    if mode == "wrap":
        begin, count = begin & np.uint64(31), count & np.uint64(31)
    begin, count = np.minimum(begin, np.uint64(32)), np.minimum(count, np.uint64(32))
    return (((np.uint64(1) << count) - np.uint64(1)) << begin).astype(np.uint32)


def extended(a: Array, length: Array, mode: str) -> Array:
    """The lowest bits of a word, extended by zeros or, of a signed type, by the highest one."""
    bits = length & np.uint32(31) if mode == "wrap" else np.minimum(length, np.uint32(32))
    unused = (32 - bits.astype(np.int64)).astype(np.int64)
    wide = a.astype(np.int64) << unused
    kept = wide.astype(np.int32 if a.dtype.kind == "i" else np.uint32).astype(np.int64) >> unused
    return np.where(bits == 0, 0, kept).astype(a.dtype)


def nth_set_bit(mask: Array, base: Array, offset: Array) -> Array:
    """Where the n-th set bit is: from `base` upwards, or downwards if `offset` is negative."""
    bits = _bit_matrix(mask)[:, ::-1].astype(np.int64)
    places = np.arange(32)[None, :]
    up = (places >= base[:, None]) & (bits == 1)
    down = ((places <= base[:, None]) & (bits == 1))[:, ::-1]
    steps = offset.astype(np.int64)[:, None]
    found = np.full(mask.shape, 0xFFFFFFFF, np.uint64)
    for side, reached, place in ((up, steps, places), (down, -steps, places[:, ::-1])):
        there = side & (np.cumsum(side, axis=1) == np.maximum(reached, 1)) & (reached != 0)
        there &= reached > 0
        hit = there.any(axis=1)
        at = np.broadcast_to(place, there.shape)[np.arange(len(mask)), there.argmax(axis=1)]
        found[hit] = at[hit]
    here = (offset == 0) & (bits[np.arange(len(mask)), base & 31] == 1)
    return np.where(here, base, found).astype(np.uint32)


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
