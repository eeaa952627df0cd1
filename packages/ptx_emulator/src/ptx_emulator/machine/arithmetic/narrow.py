# SPDX-License-Identifier: Apache-2.0
"""Floats of 8 and of 19 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic.numerics import E4M3_VALUES, Floats, Words, to_f16, to_f32

E4M3_LARGEST, E5M2_LARGEST = 448.0, 57344.0
TF32_BITS = np.uint32(0xFFFFE000)


def to_e4m3(x: Floats) -> NDArray[np.uint8]:
    """The code of the nearest e4m3 number, of two the even one. Beyond the range it is 448."""
    size = np.minimum(np.abs(x.astype(np.float64)), E4M3_LARGEST)
    _, exponent = np.frexp(size)
    step = np.ldexp(1.0, np.maximum(exponent - 4, -9))  # between neighbours, also of subnormals
    with np.errstate(invalid="ignore"):
        near = np.rint(size / step) * step
    code = np.searchsorted(E4M3_VALUES[:127], near).astype(np.uint8)
    code = np.where(np.isnan(x), np.uint8(127), code)
    signed: NDArray[np.uint8] = code | (np.signbit(x) & ~np.isnan(x)).astype(np.uint8) << 7
    return signed


def to_e5m2(x: Floats) -> NDArray[np.uint8]:
    """The code of the nearest e5m2 number, of two the even one. Beyond the range it is 57344."""
    size = np.minimum(np.abs(x.astype(np.float64)), E5M2_LARGEST)
    _, exponent = np.frexp(size)
    step = np.ldexp(1.0, np.maximum(exponent - 3, -16))
    with np.errstate(invalid="ignore"):
        near = (np.rint(size / step) * step).astype(np.float16)
    code = (near.view(np.uint16) >> 8).astype(np.uint8)
    code = np.where(np.isnan(x), np.uint8(127), code)
    signed: NDArray[np.uint8] = code | (np.signbit(x) & ~np.isnan(x)).astype(np.uint8) << 7
    return signed


def pack_8(low: Floats, high: Floats, dtype: str) -> NDArray[np.uint16]:
    narrow = to_e4m3 if dtype == "e4m3" else to_e5m2
    return narrow(low) | narrow(high).astype(np.uint16) << np.uint16(8)


def unpack_8(pair: NDArray[np.uint16], dtype: str) -> NDArray[np.uint32]:
    """Two 8-bit floats as a pair of f16."""
    values = (to_f32(code.astype(np.uint8), dtype) for code in (pair & 0xFF, pair >> 8))
    low, high = (to_f16(value).astype(np.uint32) for value in values)
    return low | high << np.uint32(16)


def to_tf32(x: Floats) -> Words:
    """The nearest of 19 bits, of two the one away from zero. NaN loses its last bits."""
    bits = x.view(np.uint32)
    return np.where(np.isfinite(x), bits + np.uint32(0x1000), bits) & TF32_BITS


def to_tf32_even(x: Floats) -> Words:
    """The nearest of 19 bits, of two the even one. There is one NaN."""
    bits = x.view(np.uint32)
    even = bits + (np.uint32(0xFFF) + (bits >> 13 & 1))
    kept = np.where(np.isfinite(x), even, bits) & TF32_BITS
    return np.where(np.isnan(x), np.uint32(0x7FFFE000), kept)
