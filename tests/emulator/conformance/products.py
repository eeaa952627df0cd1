# SPDX-License-Identifier: Apache-2.0
"""Products of doubles and of integers of 4 and 8 bits, and movmatrix."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from tests.emulator.conformance.case import WARP, Array, Case, Part

LANE = np.arange(WARP)


class Product(NamedTuple):
    """A shape, its element type, and how many elements a register has."""

    rows: int
    depth: int
    dtype: str
    width: int
    arch: str = "sm_80"

    @property
    def name(self) -> str:
        sums = "f64" if self.dtype == "f64" else "s32"
        types = f"{sums}.{self.dtype}.{self.dtype}.{sums}"
        return f"mma.sync.aligned.m{self.rows}n8k{self.depth}.row.col.{types}"


PRODUCTS = [
    Product(8, 4, "f64", 1),
    Product(16, 8, "f64", 1, "sm_90a"),
    Product(16, 16, "f64", 1, "sm_90a"),
    Product(8, 16, "s8", 4),
    Product(8, 32, "u4", 8),
    Product(16, 64, "s4", 8),
]


def _registers(matrix: Array, width: int, bits: int) -> Array:
    """The rows of a matrix as a warp holds them, [registers, lanes] of words."""
    rows, depth = matrix.shape
    found = []
    for block in range(depth // (4 * width)):
        for half in range(rows // 8):
            columns = block * 4 * width + LANE % 4 * width
            parts = [matrix[LANE // 4 + 8 * half, columns + i] for i in range(width)]
            if bits == 64:
                found.append(parts[0].astype(np.float64).view(np.uint64))
                continue
            mask = (1 << bits) - 1
            words = [(part.astype(np.int64) & mask) << bits * i for i, part in enumerate(parts)]
            found.append(np.sum(words, axis=0))
    return np.stack(found).astype(np.uint64 if bits == 64 else np.uint32)


def _sums(matrix: Array, bits: int) -> Array:
    """A matrix of 8 columns as accumulators."""
    found = [
        matrix[LANE // 4 + 8 * half, 2 * (LANE % 4) + i]
        for half in range(len(matrix) // 8)
        for i in range(2)
    ]
    if bits == 64:
        return np.stack(found).astype(np.float64).view(np.uint64)
    return np.stack(found).astype(np.int32).view(np.uint32)


def _case(product: Product) -> Case:
    rows, depth, dtype, width, arch = product
    rng = np.random.default_rng(depth)
    bits = 64 if dtype == "f64" else int(dtype[1:])
    low, high = {"f64": (-99, 99), "s8": (-128, 128), "s4": (-8, 8), "u4": (0, 16)}[dtype]
    a, b = (rng.integers(low, high, (n, depth)) for n in (rows, 8))
    c = rng.integers(-1000, 1000, (rows, 8))
    inputs = [_registers(x, width, bits) for x in (a, b)]
    before, after = (_sums(x, bits) for x in (c, a @ b.T + c))
    counts = len(before), *(len(x) for x in inputs)
    total = np.cumsum((0, *counts))
    d_text, a_text, b_text = (
        "{" + ", ".join(f"%{i}" for i in range(first, last)) + "}"
        for first, last in itertools.pairwise(total)
    )
    kind, letter = ("double", "d") if bits == 64 else ("u32", "r")
    read = "__longlong_as_double((long long)%s)" if bits == 64 else "%s"
    values = ", ".join(
        f'"{letter}"({read.replace("%s", f"in{n}[{WARP * i} + i]")})'
        for n, count in enumerate(counts[1:])
        for i in range(count)
    )
    sums = ", ".join(f'"+{letter}"(d[{i}])' for i in range(counts[0]))
    loads = " ".join(
        f"d[{i}] = {read.replace('%s', f'in2[{WARP * i} + i]')};" for i in range(counts[0])
    )
    stored = "__double_as_longlong(d[k])" if bits == 64 else "d[k]"
    body = (
        f"  {kind} d[{counts[0]}]; {loads}\n"
        f'  asm volatile("{product.name} {d_text}, {a_text}, {b_text}, {d_text};"'
        f" : {sums} : {values});\n"
        f"  for (int k = 0; k < {counts[0]}; ++k) out[{WARP} * k + i] = {stored};"
    )
    part = Part(product.name, after.ravel())
    arrays = tuple(x.ravel() for x in (*inputs, before))
    return Case(product.name, body, arrays, (part,), arch=arch)


def _transposed() -> Case:
    matrix = np.random.default_rng(3).integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    words, turned = (np.ascontiguousarray(x).view(np.uint32).ravel() for x in (matrix, matrix.T))
    body = (
        '  u32 r; asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) :'
        ' "r"(in0[i])); out[i] = r;'
    )
    return Case("movmatrix", body, (words,), (Part("movmatrix", turned),))


def cases() -> list[Case]:
    return [*map(_case, PRODUCTS), _transposed()]
