# SPDX-License-Identifier: Apache-2.0
"""What few kernels have: carries, masks, roundings in a direction, comparisons of pairs, e5m2."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

import numpy as np
import torch

from tests.emulator.conformance import packed
from tests.emulator.conformance.case import Array, Case, Op, bits, elementwise, floats
from tests.emulator.conformance.convert import operands as numbers_of_all_scales
from tests.emulator.conformance.integer import words

WORD, SIZE = 1 << 32, 256


def _one_by_one(function: Callable[..., int]) -> Callable[..., Array]:
    """A function of Python's integers, of which the low 32 bits stay."""

    def apply(*arrays: Array) -> Array:
        rows = zip(*(array.tolist() for array in arrays), strict=True)
        return np.array([int(function(*row)) % WORD for row in rows], np.uint32)

    return apply


def _signed(x: int, width: int = 32) -> int:
    x %= 1 << width
    return x - (1 << width) if x >> width - 1 else x


def _mask(a: int, b: int, wraps: bool) -> int:
    begin, count = (a % 32, b % 32) if wraps else (min(a, 32), min(b, 32))
    return (1 << count) - 1 << begin


def _extended(a: int, b: int, wraps: bool, signed: bool) -> int:
    count = b % 32 if wraps else min(b, 32)
    low = a & (1 << count) - 1
    return low - (1 << count) if signed and count and low >> count - 1 else low


def _nth(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if mask >> base & 1 else WORD - 1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [place for place in places if mask >> place & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else WORD - 1


def _parts(x: int, size: int, signed: bool) -> list[int]:
    found = [x >> shift & (1 << size) - 1 for shift in range(0, 32, size)]
    return [_signed(part, size) for part in found] if signed else found


def _dot(a: int, b: int, signed: bool, upper: bool) -> int:
    left, right = _parts(a, 16, signed), _parts(b, 8, signed)
    chosen = right[2:] if upper else right[:2]
    return sum(x * y for x, y in zip(left, chosen, strict=True))


def _apart(a: int, b: int) -> list[int]:
    return [abs(x - y) for x, y in zip(_parts(a, 8, False), _parts(b, 8, False), strict=True)]


def _double(x: int, y: int) -> int:
    return y << 32 | x


INTEGERS = [
    Op(
        "add.cc addc.cc addc",
        "{.reg .u32 t; add.cc.u32 t, %1, %2; addc.cc.u32 t, %2, %2; addc.u32 %0, %1, 0;}",
        _one_by_one(lambda a, b: a + (2 * b + (a + b >> 32) >> 32)),
    ),
    Op(
        "a carry through all ones",
        "{.reg .u32 t; add.cc.u32 t, %1, %2; addc.cc.u32 t, 0xFFFFFFFF, 0; addc.u32 %0, 0, 0;}",
        _one_by_one(lambda a, b: a + b >> 32),
    ),
    Op(
        "a borrow through zero",
        "{.reg .u32 t; sub.cc.u32 t, %1, %2; subc.cc.u32 t, 0, 0; subc.u32 %0, 5, 0;}",
        _one_by_one(lambda a, b: 5 - (a < b)),
    ),
    Op(
        "sub.cc subc",
        "{.reg .u32 t; sub.cc.u32 t, %1, %2; subc.u32 %0, %2, %1;}",
        _one_by_one(lambda a, b: b - a - (a < b)),
    ),
    Op(
        "mad.lo.cc madc.hi",
        "{.reg .u32 t; mad.lo.cc.u32 t, %1, %2, %1; madc.hi.u32 %0, %1, %2, %2;}",
        _one_by_one(lambda a, b: (a * b >> 32) + b + (a * b % WORD + a >> 32)),
    ),
    Op(
        "mad.hi.cc addc",
        "{.reg .u32 t; mad.hi.cc.s32 t, %1, %2, %2; addc.u32 %0, 0, 0;}",
        _one_by_one(lambda a, b: (_signed(a) * _signed(b) >> 32) % WORD + b >> 32),
    ),
    Op(
        "add.cc.u64",
        "{.reg .u64 t, x; .reg .u32 h; mov.b64 x, {%1, %2}; add.cc.u64 t, x, x;"
        " addc.u64 t, 0, 5; cvt.u32.u64 %0, t;}",
        _one_by_one(lambda a, b: 5 + (2 * _double(a, b) >> 64)),
    ),
    Op("bmsk.clamp", "bmsk.clamp.b32 %0, %1, %2;", _one_by_one(lambda a, b: _mask(a, b, False))),
    Op("bmsk.wrap", "bmsk.wrap.b32 %0, %1, %2;", _one_by_one(lambda a, b: _mask(a, b, True))),
    Op(
        "szext.clamp.s32",
        "szext.clamp.s32 %0, %1, %2;",
        _one_by_one(lambda a, b: _extended(a, b, False, True)),
    ),
    Op(
        "szext.wrap.u32",
        "szext.wrap.u32 %0, %1, %2;",
        _one_by_one(lambda a, b: _extended(a, b, True, False)),
    ),
    Op(
        "fns up",
        "{.reg .u32 t; and.b32 t, %2, 31; fns.b32 %0, %1, t, 3;}",
        _one_by_one(lambda a, b: _nth(a, b % 32, 3)),
    ),
    Op(
        "fns down",
        "{.reg .u32 t; and.b32 t, %2, 31; fns.b32 %0, %1, t, -2;}",
        _one_by_one(lambda a, b: _nth(a, b % 32, -2)),
    ),
    Op(
        "fns here",
        "{.reg .u32 t; and.b32 t, %2, 31; fns.b32 %0, %1, t, 0;}",
        _one_by_one(lambda a, b: _nth(a, b % 32, 0)),
    ),
    Op("cnot", "cnot.b32 %0, %1;", _one_by_one(lambda a, b: a == 0)),
    Op(
        "slct.u32.s32",
        "slct.u32.s32 %0, %1, %2, %2;",
        _one_by_one(lambda a, b: a if _signed(b) >= 0 else b),
    ),
    Op(
        "mul24.lo.s32",
        "mul24.lo.s32 %0, %1, %2;",
        _one_by_one(lambda a, b: _signed(a, 24) * _signed(b, 24)),
    ),
    Op(
        "mad24.hi.u32",
        "mad24.hi.u32 %0, %1, %2, %1;",
        _one_by_one(lambda a, b: ((a % (1 << 24)) * (b % (1 << 24)) >> 16) + a),
    ),
    Op(
        "dp2a.lo.s32",
        "dp2a.lo.s32.s32 %0, %1, %2, %1;",
        _one_by_one(lambda a, b: _dot(a, b, True, False) + a),
    ),
    Op(
        "dp2a.hi.u32",
        "dp2a.hi.u32.u32 %0, %1, %2, %1;",
        _one_by_one(lambda a, b: _dot(a, b, False, True) + a),
    ),
    Op(
        "vabsdiff4.add",
        "vabsdiff4.u32.u32.u32.add %0, %1, %2, %1;",
        _one_by_one(lambda a, b: sum(_apart(a, b)) + a),
    ),
    Op(
        "vabsdiff4",
        "vabsdiff4.u32.u32.u32 %0, %1, %2, %1;",
        _one_by_one(lambda a, b: sum(x << 8 * i for i, x in enumerate(_apart(a, b)))),
    ),
]

MODES: dict[str, Callable[[Fraction], bool]] = {
    "rz": lambda x: x >= 0,
    "rm": lambda x: True,
    "rp": lambda x: False,
}  # whether downwards


def _rounded(exact: Fraction, digits: int, mode: str) -> float:
    """The neighbour of an exact number in a format of many digits."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    step = Fraction(2) ** (exponent - digits + 1)
    down = exact // step
    chosen = down if MODES[mode](exact) or down * step == exact else down + 1
    return float(chosen * step)


def _exactly(
    function: Callable[..., Fraction], mode: str, dtype: type[np.floating]
) -> Callable[..., Array]:
    digits = {np.float32: 24, np.float64: 53}[dtype]

    def apply(*arrays: Array) -> Array:
        rows = zip(*(array.view(dtype).tolist() for array in arrays), strict=True)
        exact = [function(*map(Fraction, row)) for row in rows]
        zero = -0.0 if mode == "rm" else 0.0  # of terms that cancel each other
        found = [_rounded(number, digits, mode) if number else zero for number in exact]
        return np.array(found, dtype).view(f"u{np.dtype(dtype).itemsize}")

    return apply


def _root(x: Fraction) -> Fraction:
    """More digits of a square root than any format has; no root is exact by chance alone."""
    shift = 400
    root = isqrt((abs(x).numerator << 2 * shift) // abs(x).denominator)
    exact = root * root * abs(x).denominator == abs(x).numerator << 2 * shift
    return Fraction(2 * root + (0 if exact else 1), 2 << shift)


DIRECTED = {
    "add": ("%1, %2", lambda a, b: a + b),
    "sub": ("%1, %2", lambda a, b: a - b),
    "mul": ("%1, %2", lambda a, b: a * b),
    "fma": ("%1, %2, %1", lambda a, b: a * b + a),
    "div": ("%1, %2", lambda a, b: a / b),
    "rcp": ("%2", lambda a, b: 1 / b),
    "sqrt": ("%3", lambda a, b: _root(a)),
}


def _directed(dtype: type[np.floating], names: tuple[str, ...]) -> Case:
    """Sums and products of numbers of close scales, so that every digit matters."""
    kind, size = ("f32", 4) if dtype == np.float32 else ("f64", 8)
    move = f"mov.b{8 * size}"
    before = f"{{.reg .{kind} x, y, z; {move} x, %1; {move} y, %2; abs.{kind} z, x;"
    ops = []
    for name in names:
        places, function = DIRECTED[name]
        places = places.replace("%1", "x").replace("%2", "y").replace("%3", "z")
        for mode in MODES:
            text = f"{before} {name}.{mode}.{kind} x, {places}; {move} %0, x;}}"
            ops.append(Op(f"{name}.{mode}.{kind}", text, _exactly(function, mode, dtype)))
    rng = np.random.default_rng(5)
    values = (np.ldexp(rng.standard_normal((2, 128)), rng.integers(-3, 3, (2, 128)))).astype(dtype)
    values[:, :6] = [[1, 4, 9, 0.25, 3, 5], [1, 2, -3, 0.5, -3, -1]]
    inputs = [np.ascontiguousarray(row).view(f"u{size}") for row in values]
    result = np.uint32 if size == 4 else np.uint64
    return elementwise(f"directed {kind}", ops, inputs, result=result)


def _to_float(x: int, mode: str) -> int:
    return int(np.float32(_rounded(Fraction(x), 24, mode)).view(np.uint32))


FROM_INTEGERS = [
    Op(
        f"cvt.{mode}.f32.{kind}",
        f"{{.reg .u64 x; .reg .f32 f; mov.b64 x, {{%1, %2}}; cvt.{mode}.f32.{kind} f, {source};"
        " mov.b32 %0, f;}",
        _one_by_one(lambda a, b, mode=mode, value=value: _to_float(value(a, b), mode)),
    )
    for mode, kind, source, value in (
        ("rz", "s32", "%1", lambda a, b: _signed(a)),
        ("rp", "u32", "%1", lambda a, b: a),
        ("rm", "s64", "x", lambda a, b: _signed(_double(a, b), 64)),
        ("rp", "u64", "x", lambda a, b: _double(a, b)),
    )
]


def _to_tf32(x: Array) -> Array:
    """To the nearest, ties away from zero. NaN loses its last bits, and may become infinite."""
    kept = (x.astype(np.uint64) + 0x1000 & 0xFFFFE000).astype(np.uint32)
    return np.where(np.isfinite(floats(x)), kept, x & 0xFFFFE000)


TF32 = [
    Op("cvt.rna.tf32.f32", "cvt.rna.tf32.f32 %0, %1;", lambda a, b: _to_tf32(a)),
    Op("cvt.rna.tf32.f32 of others", "cvt.rna.tf32.f32 %0, %2;", lambda a, b: _to_tf32(b)),
]


def _e5m2(x: Array) -> Array:
    values = np.clip(floats(x), -57344, 57344)
    codes = torch.from_numpy(values).to(torch.float8_e5m2).view(torch.uint8).numpy()
    return np.where(np.isnan(floats(x)), 0x7F, codes).astype(np.uint32)


def _halves_of_e5m2(pair: Array) -> Array:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).to(torch.float16)
    known = np.where(numbers.isnan(), 0x7FFF, numbers.view(torch.uint16).numpy()).astype(np.uint32)
    found: Array = known[pair >> 8 & 0xFF] << 16 | known[pair & 0xFF]
    return found


EIGHT_BITS = [
    Op(
        "cvt.rn.satfinite.e5m2x2.f32",
        "{.reg .b16 h; cvt.rn.satfinite.e5m2x2.f32 h, %1, %2; cvt.u32.u16 %0, h;}",
        lambda a, b: _e5m2(a) << 8 | _e5m2(b),
    ),
    Op(
        "cvt.rn.f16x2.e5m2x2",
        "{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e5m2x2 %0, h;}",
        lambda a, b: _halves_of_e5m2(a),
    ),
    Op(
        "cvt.rn.satfinite.e5m2x2.f16x2",
        "{.reg .b16 h; cvt.rn.satfinite.e5m2x2.f16x2 h, %1; cvt.u32.u16 %0, h;}",
        lambda a, b: sum(
            _e5m2(bits(packed.to_floats(a >> shift & 0xFFFF, "f16"))) << shift // 2
            for shift in (0, 16)
        ),
    ),
]

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "gtu": lambda a, b: ~(a <= b),
    "le": lambda a, b: a <= b,
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def _compared(dtype: str, comparison: str, true: int) -> Callable[..., Array]:
    def apply(a: Array, b: Array, c: Array) -> Array:
        found = np.zeros(len(a), np.uint32)
        for shift in (0, 16):
            x, y = (packed.to_floats(word >> shift & 0xFFFF, dtype) for word in (a, b))
            found |= np.where(COMPARISONS[comparison](x, y), true << shift, 0).astype(np.uint32)
        return found

    return apply


def _clamped(dtype: str, largest: float) -> Callable[..., Array]:
    exact = packed.exactly(dtype, packed.OPERATIONS["fma.rn"][1])

    def apply(*arrays: Array) -> Array:
        found = np.zeros(len(arrays[0]), np.uint32)
        for shift in (0, 16):
            halves = exact(*arrays) >> shift & 0xFFFF
            values = packed.to_floats(halves, dtype)
            kept = np.where(values < 0, 0, halves)
            if np.isfinite(largest):
                one = packed.to_halves(np.array([1], np.float32), dtype)[0]
                kept = np.where(values > largest, one, np.where(np.isnan(values), 0, kept))
                kept = np.where(kept == 0x8000, 0, kept)
            found |= (kept << shift).astype(np.uint32)
        return found

    return apply


def _pairs(dtype: str, one: int) -> Case:
    ops = [
        Op(
            f"set.{name}.{target}.{dtype}x2",
            f"set.{name}.{target}.{dtype}x2 %0, %1, %2;",
            _compared(dtype, name, true),
        )
        for name in COMPARISONS
        for target, true in ((f"{dtype}x2", one), ("u32", 0xFFFF))
    ]
    pair = (
        f"{{.reg .pred p, q; setp.le.{dtype}x2 p|q, %1, %2; selp.u32 %0, 65535, 0, p;"
        " @q or.b32 %0, %0, 0xFFFF0000;}"
    )
    ops.append(Op(f"setp.le.{dtype}x2", pair, _compared(dtype, "le", 0xFFFF)))
    text = f"fma.rn.relu.{dtype}x2 %0, %1, %2, %3;"
    ops.append(Op(text.split()[0], text, _clamped(dtype, np.inf)))
    if dtype == "f16":
        text = "fma.rn.sat.f16x2 %0, %1, %2, %3;"
        ops.append(Op(text.split()[0], text, _clamped(dtype, 1.0)))
    return elementwise(f"compared pairs of {dtype}", ops, packed.operands(dtype), arch="sm_90a")


def cases() -> list[Case]:
    small = (words(0), np.where(np.arange(SIZE) % 3, words(1), words(1) % 40).astype(np.uint32))
    return [
        elementwise("carries and masks", INTEGERS, small),
        _directed(np.float32, tuple(DIRECTED)),
        _directed(np.float64, tuple(DIRECTED)),
        elementwise("floats of integers", FROM_INTEGERS, (words(2), words(3))),
        elementwise("tf32", TF32, numbers_of_all_scales()),
        elementwise("e5m2", EIGHT_BITS, numbers_of_all_scales(), arch="sm_90a"),
        _pairs("f16", 0x3C00),
        _pairs("bf16", 0x3F80),
    ]
