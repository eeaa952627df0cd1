# SPDX-License-Identifier: Apache-2.0
"""Integers, bits and 16-bit floats against Python and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import SCHEDULES
from tests.user_kernel.corpus_kernels import clean, corpus_kernel, floats, integers

FILE = "integers.cu"


def bytes_of(word: int) -> list[int]:
    return np.array([word], np.int32).view(np.int8).tolist()  # type: ignore[no-any-return]


def test_bits() -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 64).astype(np.int32)
    x[:4] = 0, 1, -1, -(2**31)
    out = np.zeros((64, 8), np.int32)
    clean(corpus_kernel(FILE, "bits"), out, x, grid=1, block=64)
    for row, signed in zip(out.astype(np.int64), x.tolist(), strict=True):
        word = signed % 2**32
        text = f"{word:032b}"
        low = (word & -word).bit_length()
        assert row[0] == low
        assert row[1] == 32 - word.bit_length()
        assert row[2] == text.count("1")
        assert row[3] % 2**32 == int(text[::-1], 2)
        assert row[4] == 7 + sum(a * b for a, b in zip(bytes_of(signed), (4, 3, 2, 1), strict=True))
        assert row[5] % 2**32 == (abs(signed - 1000) + 5) % 2**32
        assert row[6] % 2**32 == word * 0x9E3779B9 >> 32
        both = [*word.to_bytes(4, "little"), 0x78, 0x56, 0x34, 0x12]
        chosen = bytes(both[selector] for selector in (2, 5, 1, 6))
        assert row[7] % 2**32 == int.from_bytes(chosen, "little")


def test_products_and_quotients_of_64_bits() -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63, 64, dtype=np.int64)
    out = np.zeros((64, 4), np.int64)
    clean(corpus_kernel(FILE, "wide"), out, x, grid=1, block=64)
    for row, value in zip(out.tolist(), x.tolist(), strict=True):
        assert row[0] == value * 0x123456789ABCDEF >> 64
        assert row[1] % 2**64 == (value % 2**64) * ((2**64 - 1) // 3) >> 64
        assert row[2] == (abs(value) // 1000003) * (1 if value > 0 else -1)
        assert row[3] == (abs(value) % 12345) * (1 if value > 0 else -1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_lane_reserves_for_its_warp(schedule: str) -> None:
    x, out, count = integers(192, largest=1000), np.zeros(192, np.int32), np.zeros(1, np.int32)
    clean(corpus_kernel(FILE, "compact"), out, count, x, grid=3, block=64, schedule=schedule)
    assert count[0] == (x & 1).sum()
    np.testing.assert_array_equal(np.sort(out[: count[0]]), np.sort(x[x & 1 == 1]))


def test_half_precision() -> None:
    a, b = floats(64).astype(np.float16), floats(64, seed=1).astype(np.float16)
    out = np.zeros((64, 8), np.uint16)
    clean(corpus_kernel(FILE, "halves"), out, a, b, grid=1, block=64)
    exact = a.astype(np.float64) * b + a
    wanted = [a + b, a * b, np.maximum(a, b), np.minimum(a, b), -a, np.abs(a)]
    got = out.view(np.float16)
    for column, values in enumerate([*wanted, exact.astype(np.float16)]):
        np.testing.assert_array_equal(got[:, column], values)
    np.testing.assert_array_equal(out[:, 7], a < b)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers, in float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_bfloat16() -> None:
    a, b = to_bf16(floats(32, 2)), to_bf16(floats(32, 2, seed=1))
    words = [(x.view(np.uint32)[:, 0] >> 16) | x.view(np.uint32)[:, 1] for x in (a, b)]
    out = np.zeros((32, 4), np.uint32)
    clean(corpus_kernel(FILE, "bfloats"), out, *words, grid=1, block=32)
    pairs = np.stack((out << 16, out & 0xFFFF0000), axis=-1).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(pairs[:, 0], np.maximum(a, b))
    np.testing.assert_array_equal(pairs[:, 1], -a)
    np.testing.assert_array_equal(pairs[:, 2], to_bf16(a.astype(np.float64) * b + a))
    np.testing.assert_array_equal(out[:, 3], a[:, 0] < b[:, 0])
