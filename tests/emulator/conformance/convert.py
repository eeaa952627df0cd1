# SPDX-License-Identifier: Apache-2.0
"""Conversions: roundings of float32 to 16 bits, and between floats and integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tests.emulator.conformance.case import Array, Case, Op, bits, elementwise, floats
from tests.emulator.conformance.float32 import flush

SIZE = 512
CANONICAL_NAN = 0x7FFF


def to_f16(x: Array) -> Array:
    with np.errstate(all="ignore"):
        rounded = floats(x).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(floats(x)), CANONICAL_NAN, rounded).astype(np.uint32)


def to_bf16(x: Array) -> Array:
    wide = x.astype(np.uint64)
    rounded = wide + 0x7FFF + (wide >> 16 & 1) >> 16
    return np.where(np.isnan(floats(x)), CANONICAL_NAN, rounded).astype(np.uint32)


E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
"""The numbers of the codes from 0 to 448."""


def to_e4m3(x: Array) -> Array:
    """The code of the nearest number, of two the one with an even code."""
    values = floats(x).astype(np.float64)
    distance = np.abs(np.minimum(np.abs(values), E4M3[-1])[:, None] - E4M3)
    code = (distance + np.where(np.arange(127) % 2, 1e-12 * E4M3, 0)).argmin(axis=1)
    code = code | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), 0x7F, code).astype(np.uint32)


def operands() -> tuple[Array, Array]:
    """Numbers of all scales, halfway cases of both formats, limits and special values."""
    rng = np.random.default_rng(14)
    x = bits(np.ldexp(rng.standard_normal(SIZE), rng.integers(-28, 20, SIZE)).astype(np.float32))
    y = np.roll(x, 7)
    halves = bits(rng.standard_normal(64).astype(np.float32)) & 0xFFFF0000
    x[:32], x[32:64] = halves[:32] | 0x8000, halves[32:] & 0xFFFFE000 | 0x1000
    subnormal = bits(np.arange(1, 33, dtype=np.float32) * np.float32(2.0**-25))
    x[64:96] = subnormal
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65519.996, 65520.0, -65520.0, 65536.0]
    edges += [2.0**-24, 2.0**-25, 2.0**-25 * 1.0000001, 1e-40, -1e-45, 3.4028235e38, 3.3895314e38]
    edges += [3.39e38, 6.1035156e-05, 6.0975552e-05, 1.0, -2.5, 0.5, 1.5]
    x[96 : 96 + len(edges)] = bits(np.array(edges, np.float32))
    y[96 : 96 + len(edges)] = bits(np.array(edges[::-1], np.float32))
    x[-1], y[-1] = 0xFFC12345, 0x7F800001
    return x, y


PACKED = [
    Op(
        "cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 %0, %1, %2;", lambda a, b: to_f16(a) << 16 | to_f16(b)
    ),
    Op(
        "cvt.rn.bf16x2.f32",
        "cvt.rn.bf16x2.f32 %0, %1, %2;",
        lambda a, b: to_bf16(a) << 16 | to_bf16(b),
    ),
    Op(
        "cvt.rn.f16.f32",
        "{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h;}",
        lambda a, b: to_f16(a),
    ),
    Op(
        "cvt.rn.bf16.f32",
        "{.reg .b16 h; cvt.rn.bf16.f32 h, %1; cvt.u32.u16 %0, h;}",
        lambda a, b: to_bf16(a),
    ),
]


E4M3_PAIRS = [
    Op(
        "cvt.rn.satfinite.e4m3x2.f32",
        "{.reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, %1, %2; cvt.u32.u16 %0, h;}",
        lambda a, b: to_e4m3(a) << 8 | to_e4m3(b),
    ),
]


def halves_of_e4m3(codes: Array) -> Array:
    """The pair of halves of two codes, the first in the lower byte."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float16)
    known = np.where(numbers.isnan(), CANONICAL_NAN, numbers.view(torch.uint16).numpy())
    known = known.astype(np.uint32)
    found: Array = known[codes >> 8 & 0xFF] << 16 | known[codes & 0xFF]
    return found


def every_e4m3() -> tuple[Array, Array]:
    """Pairs of codes, in which every one is first and second."""
    code = np.arange(SIZE, dtype=np.uint32) % 256
    return code | np.roll(code, 7) << 8, code


FROM_E4M3 = [
    Op(
        "cvt.rn.f16x2.e4m3x2",
        "{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h;}",
        lambda a, b: halves_of_e4m3(a),
    ),
]


def of_all_scales() -> tuple[Array, Array]:
    """Numbers of all scales of e4m3, and all that lie half way between two of its numbers."""
    rng = np.random.default_rng(15)
    x = np.ldexp(rng.standard_normal(SIZE), rng.integers(-12, 11, SIZE)).astype(np.float32)
    x[:126] = (E4M3[1:] + E4M3[:-1]) / 2
    x[126:252] = -x[:126]
    x[252:262] = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 1e30, 2.0**-10]
    return bits(x), bits(np.roll(x, 7))


def _to_integer(
    rounding: Callable[[Array], Array], low: int, high: int
) -> Callable[[Array, Array], Array]:
    def apply(x: Array, _: Array) -> Array:
        with np.errstate(all="ignore"):
            rounded = rounding(floats(x).astype(np.float64))
        limited = np.clip(np.nan_to_num(rounded, posinf=high, neginf=low), low, high)
        words: Array = limited.astype(np.int64).astype(np.uint32)
        return words

    return apply


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
SIGNED, UNSIGNED = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)

NUMBERS = [
    *(
        Op(f"cvt.{name}.s32.f32", f"cvt.{name}.s32.f32 %0, %1;", _to_integer(function, *SIGNED))
        for name, function in ROUNDINGS.items()
    ),
    Op("cvt.rzi.u32.f32", "cvt.rzi.u32.f32 %0, %1;", _to_integer(np.trunc, *UNSIGNED)),
    Op("cvt.rni.u32.f32", "cvt.rni.u32.f32 %0, %1;", _to_integer(np.rint, *UNSIGNED)),
    Op(
        "cvt.rni.f32.f32",
        "cvt.rni.f32.f32 %0, %1;",
        lambda a, b: bits(np.rint(floats(a))),
        real=True,
    ),
    Op(
        "cvt.rn.f32.s32",
        "cvt.rn.f32.s32 %0, %1;",
        lambda a, b: bits(a.view(np.int32).astype(np.float32)),
    ),
    Op("cvt.rn.f32.u32", "cvt.rn.f32.u32 %0, %1;", lambda a, b: bits(a.astype(np.float32))),
]

HALVES = [
    Op(
        "cvt.f32.f16",
        "{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}",
        lambda a: bits(a.astype(np.uint16).view(np.float16).astype(np.float32)),
        real=True,
    ),
    Op("cvt.u32.u16", "{.reg .b16 h; cvt.u16.u32 h, %1; cvt.u32.u16 %0, h;}", lambda a: a & 0xFFFF),
    Op(
        "cvt.s32.s16",
        "{.reg .b16 h; cvt.u16.u32 h, %1; cvt.s32.s16 %0, h;}",
        lambda a: a.astype(np.uint16).view(np.int16).astype(np.int32),
    ),
    Op("cvt.u32.u8", "cvt.u32.u8 %0, %1;", lambda a: a & 0xFF),
    Op("cvt.s32.s8", "cvt.s32.s8 %0, %1;", lambda a: a.astype(np.uint8).view(np.int8)),
    Op(
        "mov.b32 swap halves",
        "{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l};}",
        lambda a: a >> 16 | a << 16,
    ),
]


def _flushed(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(bits(flush(floats(a))), bits(flush(floats(b))))


FLUSHED = [
    *(
        Op(
            f"cvt.{name}.ftz.s32.f32",
            f"cvt.{name}.ftz.s32.f32 %0, %1;",
            _flushed(_to_integer(function, *SIGNED)),
        )
        for name, function in ROUNDINGS.items()
    ),
    Op(
        "cvt.rpi.ftz.f32.f32",
        "cvt.rpi.ftz.f32.f32 %0, %1;",
        _flushed(lambda a, b: bits(np.ceil(floats(a)))),
        real=True,
    ),
    Op(
        "cvt.ftz.sat.f32.f32",
        "cvt.ftz.sat.f32.f32 %0, %1;",
        _flushed(lambda a, b: bits(np.clip(np.nan_to_num(floats(a)), 0, 1) + np.float32(0))),
    ),
]


def _to_wide(rounding: Callable[[Array], Array], low: int, high: int) -> Callable[[Array], Array]:
    """Python's integers; of or to 64 bits NaN is the integer whose highest bit alone is set."""

    def convert(x: float) -> int:
        if np.isnan(x):
            return 1 << (high - low).bit_length() - 1
        limited = (low if x < 0 else high) if np.isinf(x) else int(rounding(np.array(x)))
        return min(max(limited, low), high) & MASK_64

    def apply(x: Array) -> Array:
        return np.array([convert(float(value)) for value in x], np.uint64)

    return apply


def _doubles(x: Array) -> Array:
    """The same numbers, and some that single precision does not have."""
    with np.errstate(invalid="ignore"):
        wide = floats(x).astype(np.float64)
    wide[:8] = [2.0**63, -(2.0**63), 2.0**64, 2.0**31 - 0.5, -(2.0**31) - 0.5, 1e300, 0.5, -0.5]
    return wide.view(np.uint64)


MASK_64 = (1 << 64) - 1
SIGNED_64, UNSIGNED_64 = (-(1 << 63), (1 << 63) - 1), (0, MASK_64)


def _of_singles(target: str, limits: tuple[int, int], rounding: str = "rzi") -> Op:
    name = f"cvt.{rounding}.{target}.f32"
    exact = _to_wide(ROUNDINGS[rounding], *limits)
    return Op(name, f"{name} %0, %1;", lambda a: exact(floats(a)))


def _of_doubles(target: str, limits: tuple[int, int]) -> Op:
    name, exact = f"cvt.rzi.{target}.f64", _to_wide(np.trunc, *limits)
    width = f"{{.reg .b32 w; {name} w, %1; cvt.u64.u32 %0, w;}}"
    text = width if target.endswith("32") else f"{name} %0, %1;"
    mask = np.uint64(0xFFFFFFFF if target.endswith("32") else MASK_64)
    return Op(name, text, lambda a: exact(a.view(np.float64)) & mask)


WIDE = [
    _of_singles("s64", SIGNED_64),
    _of_singles("u64", UNSIGNED_64),
    _of_singles("s64", SIGNED_64, "rpi"),
]
OF_DOUBLES = [
    _of_doubles("s64", SIGNED_64),
    _of_doubles("u64", UNSIGNED_64),
    _of_doubles("s32", SIGNED),
    _of_doubles("u32", UNSIGNED),
]


def cases() -> list[Case]:
    x, y = operands()
    every_half = np.arange(0, 65536, 64, dtype=np.uint32)
    every_half[-8:] = [0x0001, 0x03FF, 0x8001, 0x7C00, 0xFC00, 0x7BFF, 0x3C01, 0x83FF]
    return [
        elementwise("float32 to 16 bits", PACKED, (x, y)),
        elementwise("float32 to 8 bits", E4M3_PAIRS, of_all_scales(), arch="sm_90a"),
        elementwise("8 bits to 16", FROM_E4M3, every_e4m3(), arch="sm_90a"),
        elementwise("floats and integers", NUMBERS, (x, y)),
        elementwise("subnormals before conversions", FLUSHED, (x, y)),
        elementwise("floats to 64 bits", WIDE, (x,), result=np.uint64),
        elementwise("doubles to integers", OF_DOUBLES, (_doubles(x),), result=np.uint64),
        elementwise("narrow types", HALVES, (every_half | 0xABCD0000,)),
    ]
