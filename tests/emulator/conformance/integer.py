# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic, bit fields, permutations, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from tests.emulator.conformance.case import Array, Case, Op, elementwise

SIZE = 256
EDGES = (0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0xDEADBEEF)


def words(seed: int, size: int = SIZE) -> Array:
    """Random words, with every pair of edge values among two arrays of seeds 0 and 1."""
    random = np.random.default_rng(seed).integers(0, 1 << 32, size, np.uint64)
    pairs = list(product(EDGES, EDGES))[: size // 2]
    if seed < 2:
        random[: len(pairs)] = [pair[seed] for pair in pairs]
    return random.astype(np.uint32)


def signed(x: Array) -> Array:
    return x.astype(np.uint32).view(np.int32).astype(np.int64)


def wide(x: Array) -> Array:
    return x.astype(np.uint64)


def _exact(function: Callable[..., int]) -> Callable[..., Array]:
    """Apply to Python integers, so that nothing overflows, and keep the low 32 bits."""

    def apply(*arrays: Array) -> Array:
        columns = [[int(x) for x in array] for array in arrays]
        results = [int(function(*row)) & 0xFFFFFFFF for row in zip(*columns, strict=True)]
        return np.array(results, np.uint32)

    return apply


def _s(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def _truncated_division(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


BINARY = [
    Op("add.u32", "add.u32 %0, %1, %2;", lambda a, b: wide(a) + b),
    Op("sub.u32", "sub.u32 %0, %1, %2;", lambda a, b: wide(a) - b),
    Op("mul.lo.u32", "mul.lo.u32 %0, %1, %2;", lambda a, b: wide(a) * b),
    Op("mul.lo.s32", "mul.lo.s32 %0, %1, %2;", lambda a, b: wide(a) * b),
    Op("mul.hi.u32", "mul.hi.u32 %0, %1, %2;", lambda a, b: wide(a) * b >> 32),
    Op("mul.hi.s32", "mul.hi.s32 %0, %1, %2;", lambda a, b: signed(a) * signed(b) >> 32),
    Op("min.u32", "min.u32 %0, %1, %2;", np.minimum),
    Op("max.u32", "max.u32 %0, %1, %2;", np.maximum),
    Op("min.s32", "min.s32 %0, %1, %2;", lambda a, b: np.minimum(signed(a), signed(b))),
    Op("max.s32", "max.s32 %0, %1, %2;", lambda a, b: np.maximum(signed(a), signed(b))),
    Op("and.b32", "and.b32 %0, %1, %2;", np.bitwise_and),
    Op("or.b32", "or.b32 %0, %1, %2;", np.bitwise_or),
    Op("xor.b32", "xor.b32 %0, %1, %2;", np.bitwise_xor),
    Op("not.b32", "not.b32 %0, %1;", lambda a, b: ~a),
    Op("neg.s32", "neg.s32 %0, %1;", lambda a, b: -signed(a)),
    Op("abs.s32", "abs.s32 %0, %1;", lambda a, b: np.abs(signed(a))),
    Op("popc.b32", "popc.b32 %0, %1;", _exact(lambda a, b: bin(a).count("1"))),
    Op("clz.b32", "clz.b32 %0, %1;", _exact(lambda a, b: 32 - a.bit_length())),
    Op("brev.b32", "brev.b32 %0, %1;", _exact(lambda a, b: int(f"{a:032b}"[::-1], 2))),
    Op("shl.b32", "shl.b32 %0, %1, %2;", _exact(lambda a, b: a << min(b, 32))),
    Op("shr.u32", "shr.u32 %0, %1, %2;", _exact(lambda a, b: a >> min(b, 32))),
    Op("shr.s32", "shr.s32 %0, %1, %2;", _exact(lambda a, b: _s(a) >> min(b, 32))),
    Op("div.u32", "{.reg .u32 d; or.b32 d, %2, 1; div.u32 %0, %1, d;}", lambda a, b: a // (b | 1)),
    Op("rem.u32", "{.reg .u32 d; or.b32 d, %2, 1; rem.u32 %0, %1, d;}", lambda a, b: a % (b | 1)),
    Op(
        "div.s32",
        "{.reg .s32 d; or.b32 d, %2, 1; div.s32 %0, %1, d;}",
        _exact(lambda a, b: _truncated_division(_s(a), _s(b | 1))),
    ),
    Op(
        "rem.s32",
        "{.reg .s32 d; or.b32 d, %2, 1; rem.s32 %0, %1, d;}",
        _exact(lambda a, b: _s(a) - _truncated_division(_s(a), _s(b | 1)) * _s(b | 1)),
    ),
]


def _select_bytes(a: int, b: int, selector: int) -> int:
    source = (b << 32) | a
    result = 0
    for position in range(4):
        choice = selector >> 4 * position & 0xF
        byte = source >> 8 * (choice & 7) & 0xFF
        if choice & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * position
    return result


def _field(a: int, b: int, c: int, *, sign: bool) -> int:
    """bfe bit by bit, as the PTX ISA defines it."""
    start, length = b & 0xFF, c & 0xFF
    fill = a >> min(start + length - 1, 31) & 1 if sign and length else 0
    result = 0
    for i in range(32):
        bit = a >> start + i & 1 if i < length and start + i <= 31 else fill
        result |= bit << i
    return result


def _insert(a: int, b: int, c: int) -> int:
    """bfi of `a` into `b`, with the position and the length in the bytes of `c`."""
    start, length = c & 0xFF, c >> 8 & 0xFF
    mask = ((1 << length) - 1 << start) & 0xFFFFFFFF
    return b & ~mask | a << start & mask


def _lut(table: int) -> Callable[..., Array]:
    def apply(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for index in range(8):
            if table >> index & 1:
                terms = (x if index >> k & 1 else ~x for x, k in ((a, 2), (b, 1), (c, 0)))
                result |= np.bitwise_and.reduce(list(terms))
        return result

    return apply


TERNARY = [
    Op("mad.lo.u32", "mad.lo.u32 %0, %1, %2, %3;", lambda a, b, c: wide(a) * b + c),
    Op("mad.lo.s32", "mad.lo.s32 %0, %1, %2, %3;", lambda a, b, c: wide(a) * b + c),
    Op("mad.hi.u32", "mad.hi.u32 %0, %1, %2, %3;", lambda a, b, c: (wide(a) * b >> 32) + c),
    Op(
        "shf.l.wrap",
        "shf.l.wrap.b32 %0, %1, %2, %3;",
        _exact(lambda a, b, c: (b << 32 | a) << (c & 31) >> 32),
    ),
    Op(
        "shf.r.wrap",
        "shf.r.wrap.b32 %0, %1, %2, %3;",
        _exact(lambda a, b, c: (b << 32 | a) >> (c & 31)),
    ),
    Op(
        "shf.l.clamp",
        "shf.l.clamp.b32 %0, %1, %2, %3;",
        _exact(lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    ),
    Op(
        "shf.r.clamp",
        "shf.r.clamp.b32 %0, %1, %2, %3;",
        _exact(lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ),
    Op("bfe.u32", "bfe.u32 %0, %1, %2, %3;", _exact(lambda a, b, c: _field(a, b, c, sign=False))),
    Op("bfe.s32", "bfe.s32 %0, %1, %2, %3;", _exact(lambda a, b, c: _field(a, b, c, sign=True))),
    Op(
        "bfi.b32",
        "{.reg .u32 l; shr.u32 l, %3, 8; bfi.b32 %0, %1, %2, %3, l;}",
        _exact(_insert),
    ),
    Op("prmt.b32", "prmt.b32 %0, %1, %2, %3;", _exact(_select_bytes)),
    *(
        Op(f"lop3.b32 {lut:#04x}", f"lop3.b32 %0, %1, %2, %3, {lut:#x};", _lut(lut))
        for lut in (0x00, 0x1B, 0x80, 0x96, 0xCA, 0xE8, 0xFE)
    ),
    Op(
        "selp.b32",
        "{.reg .pred p; setp.ne.u32 p, %3, 0; selp.b32 %0, %1, %2, p;}",
        lambda a, b, c: np.where(c != 0, a, b),
    ),
]

COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _compare(kind: str, name: str) -> Op:
    view = signed if kind == "s32" else wide
    text = f"{{.reg .pred p; setp.{name}.{kind} p, %1, %2; selp.u32 %0, 1, 0, p;}}"
    return Op(f"setp.{name}.{kind}", text, lambda a, b: COMPARE[name](view(a), view(b)))


def _combined(name: str, function: Callable[[Array, Array], Array]) -> Op:
    text = (
        f"{{.reg .pred p, q; setp.lt.u32 q, %1, %2; setp.eq.{name}.s32 p, %1, %2, q;"
        " selp.u32 %0, 1, 0, p;}"
    )
    return Op(f"setp.eq.{name}", text, lambda a, b: function(a == b, a < b))


PREDICATES = [
    *(_compare(kind, name) for kind in ("s32", "u32") for name in COMPARE),
    _combined("and", np.logical_and),
    _combined("or", np.logical_or),
    _combined("xor", np.logical_xor),
    Op(
        "not.pred",
        "{.reg .pred p; setp.lt.u32 p, %1, %2; not.pred p, p; selp.u32 %0, 1, 0, p;}",
        lambda a, b: a >= b,
    ),
    Op(
        "@!p mov",
        "{.reg .pred p; setp.lt.u32 p, %1, %2; mov.u32 %0, %1; @!p mov.u32 %0, 7;}",
        lambda a, b: np.where(a < b, a, 7),
    ),
]


def cases() -> list[Case]:
    a, b = words(0), words(1)
    shifts = np.resize(np.array([0, 1, 7, 16, 31, 32, 33, 63, 255], np.uint32), SIZE)
    counts = np.where(np.arange(SIZE) % 2, words(2) & 0x1F1F, words(2)).astype(np.uint32)
    small = (words(3) & 31).astype(np.uint32)
    ternary = {op.name: op for op in TERNARY}
    of_fields = [ternary.pop(name) for name in ("bfe.u32", "bfe.s32")]
    return [
        elementwise("integer binary", BINARY, (a, b)),
        elementwise("integer shifts", BINARY[19:22], (words(4), shifts)),
        elementwise("integer ternary", list(ternary.values()), (a, b, counts)),
        elementwise("bit fields", of_fields, (a, small, np.roll(shifts, 3))),
        elementwise("predicates", PREDICATES, (a, b)),
    ]
