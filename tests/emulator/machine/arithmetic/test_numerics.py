# SPDX-License-Identifier: Apache-2.0
"""Corner cases against plain Python integers and exact float arithmetic."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptx_emulator.machine.arithmetic import integers, numerics

WORD = st.integers(0, 2**32 - 1)
SIGNED = st.integers(-(2**31), 2**31 - 1)
MASK = 2**32 - 1


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


@given(WORD, WORD, st.integers(0, 80))
def test_funnel_shift(low: int, high: int, amount: int) -> None:
    pair = high << 32 | low
    args = words(low), words(high), words(amount)
    wrapped, clamped = amount & 31, min(amount, 32)
    assert numerics.funnel_shift(*args, "l", "wrap")[0] == (pair << wrapped) >> 32 & MASK
    assert numerics.funnel_shift(*args, "l", "clamp")[0] == (pair << clamped) >> 32 & MASK
    assert numerics.funnel_shift(*args, "r", "wrap")[0] == pair >> wrapped & MASK
    assert numerics.funnel_shift(*args, "r", "clamp")[0] == pair >> clamped & MASK


@given(WORD, WORD, WORD, st.integers(0, 255))
def test_logic3(a: int, b: int, c: int, table: int) -> None:
    expected = sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
        for i in range(32)
    )
    assert numerics.logic3(words(a), words(b), words(c), table)[0] == expected


@given(WORD, WORD, WORD)
def test_permute_bytes(a: int, b: int, selector: int) -> None:
    source = struct.pack("<II", a, b)
    expected = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        expected |= byte << 8 * i
    assert numerics.permute_bytes(words(a), words(b), words(selector))[0] == expected


@given(SIGNED, SIGNED)
def test_signed_division_rounds_toward_zero(a: int, b: int) -> None:
    x = np.array([a], np.int32)
    if b == 0:
        assert numerics.signed_quotient(x, b)[0] == -1
    elif (a, b) != (-(2**31), -1):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert numerics.signed_quotient(x, b)[0] == quotient
        assert numerics.signed_remainder(x, b)[0] == a - quotient * b


@given(WORD, st.integers(0, 40), st.integers(0, 40))
def test_fields(x: int, position: int, length: int) -> None:
    at, size = words(position), words(length)
    field = x >> position & ((1 << length) - 1)
    assert numerics.extract_field(words(x), at, size)[0] == field & MASK
    mask = ((1 << length) - 1) << position & MASK
    base = 0x12345678
    inserted = (x << position & mask) | (base & ~mask)
    assert numerics.insert_field(words(x), words(base), at, size)[0] == inserted & MASK


def test_signed_fields_repeat_their_top_bit() -> None:
    x = np.array([0x000000F0], np.int32)
    assert numerics.extract_field(x, words(4), words(4))[0] == -1
    assert numerics.extract_field(x, words(4), words(5))[0] == 15


@given(WORD, st.integers(0, 70))
def test_shifts_beyond_the_width(x: int, amount: int) -> None:
    assert numerics.shift_left(words(x), words(amount))[0] == (x << amount) & MASK
    assert numerics.shift_right(words(x), words(amount))[0] == x >> amount
    signed = words(x).view(np.int32)
    assert numerics.shift_right(signed, words(amount))[0] == int(signed[0]) >> min(amount, 31)


@given(WORD)
def test_bit_counts(x: int) -> None:
    assert integers.count_ones(words(x))[0] == x.bit_count()
    assert integers.leading_zeros(words(x))[0] == 32 - x.bit_length()
    assert integers.reverse_bits(words(x))[0] == int(f"{x:032b}"[::-1], 2)


@given(st.integers(0, 1023), st.integers(-120, -60), st.sampled_from((1, -1)))
def test_fma_breaks_a_tie_by_what_a_double_loses(j: int, scale: int, sign: int) -> None:
    a, b = np.array([[1 + 2.0**-12], [1 + (2 * j + 1) * 2.0**-12]], np.float32)
    tie = Fraction(float(a[0])) * Fraction(float(b[0]))
    beside = tie + sign * Fraction(1, 1 << 24)
    assert numerics.fma(a, b, np.array([sign * 2.0**scale], np.float32))[0] == float(beside)


@given(st.floats(width=32), st.floats(width=32), st.floats(width=32))
def test_fma_rounds_the_exact_result(a: float, b: float, c: float) -> None:
    with np.errstate(all="ignore"):
        result = float(numerics.fma(*(np.array([x], np.float32) for x in (a, b, c)))[0])
    if not all(map(math.isfinite, (a, b, c))) or not math.isfinite(result):
        return
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(np.float32(result), np.float32(s)) for s in (-np.inf, np.inf))
    error = abs(Fraction(result) - exact)
    if np.isfinite(below) and np.isfinite(above):
        assert error <= abs(Fraction(float(below)) - exact)
        assert error <= abs(Fraction(float(above)) - exact)


@given(st.floats(width=32))
def test_conversions_to_half_precision(x: float) -> None:
    value = np.array([x], np.float32)
    with np.errstate(all="ignore"):
        half = numerics.to_f16(value)[0]
    if math.isnan(x):
        assert half == 0x7FFF
        assert numerics.to_bf16(value)[0] == 0x7FFF
        return
    with np.errstate(over="ignore"):
        assert half == value.astype(np.float16).view(np.uint16)[0]
    back = float(numerics.bf16_to_f32(numerics.to_bf16(value))[0])
    if math.isfinite(back):
        for bits in (int(numerics.to_bf16(value)[0]) + step for step in (-1, 1)):
            other = float(numerics.bf16_to_f32(np.array([bits], np.int64).astype(np.uint16))[0])
            if math.isfinite(other):
                assert abs(Fraction(back) - Fraction(x)) <= abs(Fraction(other) - Fraction(x))


@pytest.mark.parametrize("x", [1.0009765, -1.0009765, 65519.0, 1e-9, -7.1e-8, 0.1])
def test_rounding_toward_zero_never_grows(x: float) -> None:
    value = np.array([x], np.float32)
    half = float(numerics.to_f16(value, toward_zero=True).view(np.float16)[0])
    brain = float(numerics.bf16_to_f32(numerics.to_bf16(value, toward_zero=True))[0])
    assert abs(half) <= abs(x)
    assert abs(brain) <= abs(x)
    assert math.copysign(1, half) == math.copysign(1, x)


def test_packing_puts_the_first_value_low() -> None:
    low, high = np.array([1.0], np.float32), np.array([-2.0], np.float32)
    assert numerics.pack_f16(low, high)[0] == 0xC0003C00
    assert numerics.pack_bf16(low, high)[0] == 0xC0003F80


def test_flush_keeps_the_sign_of_zero() -> None:
    flushed = numerics.flush(np.array([1e-40, -1e-40, 1e-30, np.nan], np.float32))
    assert list(np.signbit(flushed)) == [False, True, False, False]
    assert flushed[0] == flushed[1] == 0
    assert flushed[2] == np.float32(1e-30)
    assert np.isnan(flushed[3])


def test_to_integer_saturates() -> None:
    x = np.array([3e9, -3e9, np.nan, -7.0], np.float32)
    assert list(numerics.to_integer(x, np.int32)) == [2**31 - 1, -(2**31), 0, -7]
    assert list(numerics.to_integer(x, np.uint32)) == [3_000_000_000, 0, 0, 0]


def test_nan_of_or_to_64_bits_is_the_highest_bit_alone() -> None:
    single, double = np.array([np.nan], np.float32), np.array([np.nan], np.float64)
    assert numerics.to_integer(single, np.int64)[0] == -(2**63)
    assert numerics.to_integer(single, np.uint64)[0] == 2**63
    assert numerics.to_integer(double, np.int32)[0] == -(2**31)
    assert numerics.to_integer(double, np.uint32)[0] == 2**31
