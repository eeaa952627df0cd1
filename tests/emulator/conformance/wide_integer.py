# SPDX-License-Identifier: Apache-2.0
"""64-bit integers, and the ways into and out of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.emulator.conformance.case import Array, Case, Op, elementwise

SIZE = 128
MASK = (1 << 64) - 1
EDGES = (0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, MASK, MASK - 1)


def _exact(function: Callable[[int, int], int]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        return np.array([function(int(x), int(y)) & MASK for x, y in zip(a, b, strict=True)], "u8")

    return apply


def _s(x: int, width: int = 64) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> width - 1 else x


OPS = [
    Op("add.s64", "add.s64 %0, %1, %2;", _exact(lambda a, b: a + b)),
    Op("sub.s64", "sub.s64 %0, %1, %2;", _exact(lambda a, b: a - b)),
    Op("mul.lo.s64", "mul.lo.s64 %0, %1, %2;", _exact(lambda a, b: a * b)),
    Op("mad.lo.s64", "mad.lo.s64 %0, %1, %2, %1;", _exact(lambda a, b: a * b + a)),
    Op("and.b64", "and.b64 %0, %1, %2;", _exact(lambda a, b: a & b)),
    Op("or.b64", "or.b64 %0, %1, %2;", _exact(lambda a, b: a | b)),
    Op("xor.b64", "xor.b64 %0, %1, %2;", _exact(lambda a, b: a ^ b)),
    Op("not.b64", "not.b64 %0, %1;", _exact(lambda a, b: ~a)),
    Op("neg.s64", "neg.s64 %0, %1;", _exact(lambda a, b: -a)),
    Op("min.s64", "min.s64 %0, %1, %2;", _exact(lambda a, b: min(_s(a), _s(b)))),
    Op("max.u64", "max.u64 %0, %1, %2;", _exact(max)),
    Op(
        "shl.b64",
        "{.reg .u32 n; cvt.u32.u64 n, %2; shl.b64 %0, %1, n;}",
        _exact(lambda a, b: a << min(b & 0xFFFFFFFF, 64)),
    ),
    Op(
        "shr.u64",
        "{.reg .u32 n; cvt.u32.u64 n, %2; shr.u64 %0, %1, n;}",
        _exact(lambda a, b: a >> min(b & 0xFFFFFFFF, 64)),
    ),
    Op(
        "shr.s64",
        "{.reg .u32 n; cvt.u32.u64 n, %2; shr.s64 %0, %1, n;}",
        _exact(lambda a, b: _s(a) >> min(b & 0xFFFFFFFF, 64)),
    ),
    Op(
        "mul.wide.u32",
        "{.reg .u32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mul.wide.u32 %0, x, y;}",
        _exact(lambda a, b: (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF)),
    ),
    Op(
        "mul.wide.s32",
        "{.reg .u32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mul.wide.s32 %0, x, y;}",
        _exact(lambda a, b: _s(a, 32) * _s(b, 32)),
    ),
    Op(
        "mad.wide.s32",
        "{.reg .u32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mad.wide.s32 %0, x, y, %1;}",
        _exact(lambda a, b: _s(a, 32) * _s(b, 32) + a),
    ),
    Op(
        "cvt.s64.s32",
        "{.reg .u32 x; cvt.u32.u64 x, %1; cvt.s64.s32 %0, x;}",
        _exact(lambda a, b: _s(a, 32)),
    ),
    Op(
        "cvt.u64.u32",
        "{.reg .u32 x; cvt.u32.u64 x, %1; cvt.u64.u32 %0, x;}",
        _exact(lambda a, b: a & 0xFFFFFFFF),
    ),
    Op(
        "mov.b64 pack",
        "{.reg .u32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mov.b64 %0, {x, y};}",
        _exact(lambda a, b: a & 0xFFFFFFFF | (b & 0xFFFFFFFF) << 32),
    ),
    Op(
        "mov.b64 unpack",
        "{.reg .u32 x, y; mov.b64 {x, y}, %1; mov.b64 %0, {y, x};}",
        _exact(lambda a, b: a >> 32 | a << 32),
    ),
    Op(
        "setp.lt.s64",
        "{.reg .pred p; setp.lt.s64 p, %1, %2; selp.b64 %0, 1, 0, p;}",
        _exact(lambda a, b: _s(a) < _s(b)),
    ),
    Op(
        "setp.lt.u64",
        "{.reg .pred p; setp.lt.u64 p, %1, %2; selp.b64 %0, 1, 0, p;}",
        _exact(lambda a, b: a < b),
    ),
]


def cases() -> list[Case]:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, MASK, (2, SIZE), np.uint64, endpoint=True)
    a[:64] = np.repeat(np.array(EDGES, np.uint64), 8)
    b[:64] = np.tile(np.array(EDGES, np.uint64), 8)
    b[64:] >>= np.resize(np.array([0, 32, 58], np.uint64), SIZE - 64)
    return [elementwise("64-bit integers", OPS, (a, b), result=np.uint64)]
