# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that NumPy does not have, or has with other corner cases than PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.machine.arithmetic.exact import product_and_error, sum_and_error, to_odd
from ptx_emulator.native import load_native

Array = Any  # an array of the element type that the instruction says
Floats = NDArray[np.float32]
Words = Any  # an array of np.uint32, which NumPy's types lose in mixed arithmetic

SMALLEST_NORMAL = np.finfo(np.float32).tiny
SIZE_BITS, SUBNORMALS = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF)  # of a float; how many there are
LARGEST_DIVISOR = np.float32(2.0**126)  # of div.approx
HALF_WAY = np.uint64((1 << 28) - 1)  # the digits of a double that are 0 between two floats
CANONICAL_NAN_BF16 = np.uint16(0x7FFF)
CANONICAL_NAN_F16 = np.uint16(0x7FFF)


def flush(x: Floats) -> Floats:
    """Subnormals become zero of their sign. What has none is returned as it is."""
    native = load_native()
    if native is not None and type(x) is np.ndarray and native.has_subnormals(x) == 0:
        return x
    size = x.view(np.uint32) & SIZE_BITS
    if not np.count_nonzero(size - np.uint32(1) < SUBNORMALS):
        return x
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a b + c, rounded once.

    The product is exact in double. A sum that was rounded to a double between two floats would be
    rounded twice, and goes to odd instead.
    """
    native = load_native()
    if native is not None:
        fused: Floats = np.empty(_shape_of(a, b, c), np.float32)
        if native.fused_multiply_add(a, b, c, fused) >= 0:
            return fused
    product = a.astype(np.float64) * b
    total = product + c
    result = total.astype(np.float32)
    if not (total.view(np.uint64) & HALF_WAY).all():
        doubtful = np.nonzero(((total.view(np.uint64) & HALF_WAY) == 0) & (result != total))
        if doubtful[0].size:
            wide = np.broadcast_to(c, total.shape)[doubtful].astype(np.float64)
            odd = to_odd(*sum_and_error(product[doubtful], wide))
            result[doubtful] = odd.astype(np.float32)
    return result


def approximate_quotient(a: Floats, b: Floats) -> Floats:
    """a times the reciprocal of b, which is zero where b is beyond 2^126."""
    return np.where(np.abs(b) > LARGEST_DIVISOR, a * np.copysign(np.float32(0), b), a / b)


def smaller(a: Array, b: Array) -> Array:
    """The number if one is NaN; of two zeros the negative one, which NumPy leaves to the host."""
    chosen = _larger_of_two(a, b, -1.0)
    if chosen is not None:
        return chosen
    result = np.fmin(a, b)
    zero = result == 0
    if zero.any():
        negative = zero & (np.signbit(a) | np.signbit(b))
        result = np.where(negative & (a == b), -np.abs(result), result)
    return result


def larger(a: Array, b: Array) -> Array:
    """The number if one is NaN; of two zeros the positive one, which NumPy leaves to the host."""
    chosen = _larger_of_two(a, b, 1.0)
    return -smaller(-a, -b) if chosen is None else chosen


def _larger_of_two(a: Array, b: Array, sign: float) -> Array | None:
    """The larger numbers, or with sign -1 the smaller ones; None where NumPy has to look."""
    native = load_native()
    arrays = type(a) is type(b) is np.ndarray
    if native is None or not arrays or not a.dtype == b.dtype == np.float32:
        return None
    chosen = np.empty(_shape_of(a, b), np.float32)
    return chosen if native.larger_of_two(a, b, sign, chosen) >= 0 else None


def _shape_of(*arrays: Array) -> tuple[int, ...]:
    """The shape of arrays of lanes, or of rows of lanes, that are broadcast."""
    shapes: set[tuple[int, ...]] = {array.shape for array in arrays}
    return shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)


def smaller_or_nan(a: Array, b: Array) -> Array:
    """NaN if one is; of two zeros the negative one."""
    return -larger_or_nan(-a, -b)


def larger_or_nan(a: Array, b: Array) -> Array:
    """NaN if one is; of two zeros the positive one."""
    return np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), larger(a, b))


def unsigned_quotient(a: Array, b: Any) -> Array:
    """Division by zero gives all ones."""
    divisor = np.broadcast_to(np.asarray(b, a.dtype), a.shape)
    zero = divisor == 0
    quotient = a // np.where(zero, a.dtype.type(1), divisor)
    return np.where(zero, a.dtype.type(np.iinfo(a.dtype).max), quotient)


def signed_quotient(a: Array, b: Any) -> Array:
    """Rounds toward zero; division by zero gives all ones."""
    divisor = np.broadcast_to(np.asarray(b, a.dtype), a.shape)
    zero = divisor == 0
    safe = np.where(zero, a.dtype.type(1), divisor)
    quotient = a // safe
    quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(zero, a.dtype.type(-1), quotient).astype(a.dtype)


def unsigned_remainder(a: Array, b: Any) -> Array:
    return a - unsigned_quotient(a, b) * np.asarray(b, a.dtype)


def signed_remainder(a: Array, b: Any) -> Array:
    return a - signed_quotient(a, b) * np.asarray(b, a.dtype)


def shift_left(x: Array, amount: Words) -> Array:
    width = 8 * x.dtype.itemsize
    inside = np.minimum(amount, width - 1).astype(x.dtype)
    return np.where(amount < width, x << inside, x.dtype.type(0))


def shift_right(x: Array, amount: Words) -> Array:
    width = 8 * x.dtype.itemsize
    inside = np.minimum(amount, width - 1).astype(x.dtype)
    if x.dtype.kind == "i":
        return x >> inside
    return np.where(amount < width, x >> inside, x.dtype.type(0))


def funnel_shift(low: Words, high: Words, amount: Words, side: str, mode: str) -> Words:
    """The upper (left) or lower (right) half of high:low shifted."""
    steps = (amount & 31 if mode == "wrap" else np.minimum(amount, 32)).astype(np.uint64)
    pair = (high.astype(np.uint64) << np.uint64(32)) | low
    shifted = (pair << steps) >> np.uint64(32) if side == "l" else pair >> steps
    return shifted.astype(np.uint32)


def logic3(a: Words, b: Words, c: Words, table: int) -> Words:
    """Bit i of `table` is the result for the inputs (a, b, c) = the bits of i."""
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            term = a if row & 4 else ~a
            term = term & (b if row & 2 else ~b)
            result |= term & (c if row & 1 else ~c)
    return result


def permute_bytes(a: Words, b: Words, selector: Words) -> Words:
    """Four nibbles choose bytes of b:a; the top bit of a nibble repeats the byte's sign."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros_like(a)
    for position in range(4):
        nibble = selector >> (4 * position)
        byte = (pair >> ((nibble & 7) * 8).astype(np.uint64)).astype(np.uint32) & 0xFF
        sign = np.where(byte & 0x80, np.uint32(0xFF), np.uint32(0))
        result |= np.where(nibble & 8, sign, byte) << (8 * position)
    return result


def extract_field(x: Array, position: Words, length: Words) -> Array:
    """`length` bits from `position`; a signed type repeats the field's top bit above them."""
    width = 8 * x.dtype.itemsize
    first, bits = position & 0xFF, length & 0xFF
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    inside = np.clip(width - first.astype(np.int64), 0, bits).astype(np.uint32)
    mask = shift_left(np.ones(x.shape, unsigned), inside) - unsigned.type(1)
    field = shift_right(x.view(unsigned), first) & mask
    if x.dtype.kind == "i":
        top = np.clip(first + bits.astype(np.int64) - 1, 0, width - 1).astype(np.uint32)
        negative = (shift_right(x.view(unsigned), top) & 1 == 1) & (bits > 0)
        field = np.where(negative, field | ~mask, field)
    return field.view(x.dtype)


def insert_field(field: Array, base: Array, position: Words, length: Words) -> Array:
    one = field.dtype.type(1)
    mask = shift_left(np.ones_like(field), length & 0xFF) - one
    mask = shift_left(mask, position & 0xFF)
    return (shift_left(field, position & 0xFF) & mask) | (base & ~mask)


def to_integer(x: Array, target: Any) -> Array:
    """A rounded float as an integer: out of range it stops at the end.

    NaN is zero; of or to 64 bits it is the integer whose highest bit alone is set.
    """
    limits = np.iinfo(target)
    lost = 1 << limits.bits - 1 if 8 in (x.dtype.itemsize, limits.bits // 8) else 0
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0)
    inside = np.clip(wide, float(limits.min), float(limits.max))
    result = inside.astype(target)
    result = np.where(wide >= float(limits.max), target(limits.max), result)
    result = np.where(wide <= float(limits.min), target(limits.min), result)
    return np.where(np.isnan(x), np.array(lost, np.uint64).astype(target), result)


def to_bf16(x: Floats, toward_zero: bool = False) -> NDArray[np.uint16]:
    bits = x.view(np.uint32)
    rounding = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    half = ((bits + rounding) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), CANONICAL_NAN_BF16, half)


def bf16_to_f32(x: NDArray[np.uint16]) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32)


with np.errstate(invalid="ignore"):  # of signalling NaNs, about which NumPy warns on Arm
    F16_VALUES: Floats = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def element_bytes(dtype: str) -> int:
    """The bytes of an element of a PTX type that products take."""
    return {"tf32": 4, "f16": 2, "bf16": 2}.get(dtype, 1)


def to_f32(narrow: NDArray[Any], dtype: str) -> Floats:
    """Numbers of 8, 16 or 19 bits of a PTX type, exactly."""
    if dtype == "tf32":
        return (narrow & np.uint32(0xFFFFE000)).view(np.float32)
    if dtype in ("s8", "u8"):
        return narrow.view(np.int8 if dtype == "s8" else np.uint8).astype(np.float32)
    if dtype == "e4m3":
        values: Floats = E4M3_VALUES[narrow]
        return values
    if dtype == "e5m2":  # the upper half of an f16
        return (narrow.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    if dtype == "bf16":
        return bf16_to_f32(narrow)
    return np.take(F16_VALUES, narrow)


def elements(words: Words, dtype: str) -> Array:
    """The numbers in 32-bit registers, as products take them: an axis more, exactly."""
    if dtype == "f64":
        return words[..., None]
    if dtype == "tf32":
        return to_f32(words, dtype)[..., None]
    if dtype in ("s4", "u4"):
        nibbles = words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        sign = 16 * (nibbles >> 3) if dtype == "s4" else 0
        return nibbles.astype(np.float64) - sign
    if dtype in ("s8", "u8"):
        kind = np.int8 if dtype == "s8" else np.uint8
        return words.view(kind).reshape(*words.shape, 4).astype(np.float64)
    if dtype in ("e4m3", "e5m2"):
        return to_f32(words.view(np.uint8).reshape(*words.shape, 4), dtype)
    return to_f32(words.view(np.uint16).reshape(*words.shape, 2), dtype)


def _e4m3_values() -> Floats:
    """The number of each of the 256 codes."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    size = np.where(exponent > 0, normal, np.ldexp(mantissa.astype(np.float64), -9))
    size = np.where(code & 127 == 127, np.nan, size)
    return np.copysign(size, np.where(code & 128, -1.0, 1.0)).astype(np.float32)


E4M3_VALUES = _e4m3_values()


def to_f16(x: Floats, toward_zero: bool = False) -> NDArray[np.uint16]:
    half = x.astype(np.float16)
    if toward_zero:
        away = np.abs(half.astype(np.float32)) > np.abs(x)
        half = np.where(away, np.nextafter(half, np.float16(0)), half)
    return np.where(np.isnan(x), CANONICAL_NAN_F16, half.view(np.uint16))


def halves(
    operation: Callable[..., Floats],
    dtype: str,
    *words: Words,
    clamp: Callable[[Floats], Floats] | None = None,
) -> Words:
    """An operation on the one or two 16-bit floats of every register, rounded once.

    It may give float32: a sum or a product rounds to 16 bits as the exact one would. `clamp`
    keeps the result in a range.
    """
    result = operation(*(to_f32(word.view(np.uint16), dtype) for word in words))
    if clamp is not None:
        result = clamp(result)
    rounded = to_f16(result) if dtype == "f16" else to_bf16(result)
    return rounded.astype(np.uint16).view(words[0].dtype)


def not_negative(a: Floats) -> Floats:
    return np.where(a < 0, np.float32(0), a)


def negative(a: Floats) -> Floats:
    return -a


def magnitude(a: Floats) -> Floats:
    return np.abs(a)


def add_16(a: Floats, b: Floats) -> Floats:
    return a + b


def subtract_16(a: Floats, b: Floats) -> Floats:
    return a - b


def multiply_16(a: Floats, b: Floats) -> Floats:
    return a * b


def fma_16(a: Floats, b: Floats, c: Floats) -> Floats:
    """a b + c of 16-bit floats, rounded to odd: one more rounding to 16 bits gives the nearest."""
    total = to_odd(*sum_and_error(a.astype(np.float64) * b, c.astype(np.float64)))
    single = total.astype(np.float32)
    odd: Floats = to_odd(single, total - single)
    return odd


def fma_64(a: Array, b: Array, c: Array) -> Array:
    """a b + c in double, rounded once: the small parts are added to odd before the large one."""
    product, low = product_and_error(a, b)
    total, lost = sum_and_error(product, c)
    plain = product + c
    small = to_odd(*sum_and_error(lost, low))
    return np.where(np.isfinite(plain) & np.isfinite(small), total + small, plain)


def saturate(x: Floats) -> Floats:
    """Between 0 and 1; NaN is 0."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def pack_f16(low: Floats, high: Floats, toward_zero: bool = False) -> Words:
    packed = None if toward_zero else _packed(low, high, bf16=False)
    if packed is not None:
        return packed
    return to_f16(low, toward_zero) | (to_f16(high, toward_zero).astype(np.uint32) << 16)


def pack_bf16(low: Floats, high: Floats, toward_zero: bool = False) -> Words:
    packed = None if toward_zero else _packed(low, high, bf16=True)
    if packed is not None:
        return packed
    return to_bf16(low, toward_zero) | (to_bf16(high, toward_zero).astype(np.uint32) << 16)


def _packed(low: Floats, high: Floats, bf16: bool) -> Words | None:
    """Floats rounded to 16 bits, two in a word; None where NumPy has to do it."""
    native = load_native()
    if native is None or not type(low) is type(high) is np.ndarray:
        return None
    words = np.empty(_shape_of(low, high), np.uint32)
    return words if native.pack_halves(low, high, bf16, words) >= 0 else None
