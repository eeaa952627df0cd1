# SPDX-License-Identifier: Apache-2.0
"""wgmma: operands in every layout a descriptor can name, both majors, several strides."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from tests.emulator.conformance.case import Array, bits
from tests.emulator.conformance.hopper_case import HopperCase
from tests.emulator.hopper_kernels import wgmma_source
from tests.emulator.operand_layouts import OperandLayout, spread_layout

THREADS, ROWS, WORDS = 128, 64, 16  # a product is 16 words of 16 bits deep, in any type
A_AT, B_AT, SMEM = 0, 32 * 1024, 96 * 1024
SPANS = (0, 32, 64, 128)
EIGHT_BITS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8}
SUMS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def tight_layout(span: int, transposed: bool, rows: int) -> OperandLayout:
    """A layout without gaps, as a kernel would have it."""
    if span == 0:
        return OperandLayout(0, transposed, leading=rows * 16, stride=128)
    if transposed:
        return OperandLayout(span, True, leading=span * 16, stride=span * 8)
    return OperandLayout(span, False, leading=16, stride=span * 8)


def _words(values: Array, dtype: str) -> Array:
    """The elements in words of 16 bits, two of 8 bits in one."""
    if dtype in EIGHT_BITS:
        codes: Array = torch.from_numpy(values).to(EIGHT_BITS[dtype]).view(torch.uint8).numpy()
        return codes.view(np.uint16)
    if dtype == "tf32":
        return values.view(np.uint16)
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (bits(values) >> 16).astype(np.uint16)


def _registers(matrix: Array, sums: str = "f32") -> Array:
    """A [64, n] matrix as the accumulators of 128 threads: [n / 2, 128], f16 as pairs."""
    thread = np.arange(THREADS)
    registers = []
    for i in range(matrix.shape[1] // 2):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i >> 1 & 1)
        registers.append(matrix[row, 8 * (i >> 2) + 2 * (thread % 4) + (i & 1)])
    values = np.stack(registers).astype(SUMS[sums])
    if sums != "f16":
        return values
    pairs = values.reshape(-1, 2, THREADS).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1, THREADS)


def _fragments(words: Array) -> Array:
    """A [64, 16] operand of words as the four A registers of 128 threads."""
    thread = np.arange(THREADS)
    registers = []
    for i in range(4):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i & 1)
        column = 2 * (thread % 4) + 8 * (i >> 1)
        low, high = (words[row, column + e].astype(np.uint32) for e in (0, 1))
        registers.append(low | high << 16)
    return np.stack(registers)


def product_case(
    n: int,
    a_layout: OperandLayout,
    b_layout: OperandLayout,
    *,
    dtype: str = "f16",
    registers: bool = False,
    accumulate: bool = True,
    sums: str = "f32",
    signs: tuple[int, int] = (1, 1),
) -> HopperCase:
    """D (+)= A B of small integers: every sum is exact. `signs` are those of A and B."""
    rng = np.random.default_rng(n + 7 * a_layout.span + 11 * b_layout.span)
    depth = {"tf32": WORDS // 2, "f16": WORDS, "bf16": WORDS}.get(dtype, 2 * WORDS)
    largest = 4 if dtype == "e5m2" else 8
    a, b = (
        rng.integers(-largest, largest + 1, (rows, depth)).astype(np.float32) for rows in (ROWS, n)
    )
    before = rng.integers(-500, 500, (ROWS, n)).astype(np.float32)
    after = signs[0] * signs[1] * (a @ b.T) + (before if accumulate else 0)
    image = np.full(SMEM, 0x55, np.uint8)
    a_words, b_words = _words(a, dtype), _words(b, dtype)
    a_layout.place(image, a_words, A_AT)
    b_layout.place(image, b_words, B_AT)
    source = wgmma_source(
        n,
        dtype=dtype,
        registers=registers,
        trans_a=a_layout.transposed,
        trans_b=b_layout.transposed,
        sums=sums,
        signs=signs,
    )
    signed = "" if signs == (1, 1) else f" signs {signs}"
    return HopperCase(
        name=f"wgmma n{n} {dtype} A {'registers' if registers else _name(a_layout)}"
        f" B {_name(b_layout)}{'' if accumulate else ' fresh'}{'' if sums == 'f32' else sums}"
        f"{signed}",
        source=source,
        entry="product",
        threads=THREADS,
        smem_bytes=SMEM,
        buffers={
            "image": image,
            "fragments": _fragments(a_words),
            "before": _registers(before, sums),
            "after": np.zeros_like(_registers(before, sums)),
        },
        arguments=(
            "image",
            np.int32(SMEM // 16).tobytes(),
            np.uint64(a_layout.descriptor(A_AT)).tobytes(),
            np.uint64(b_layout.descriptor(B_AT)).tobytes(),
            "fragments",
            "before",
            "after",
            np.int32(accumulate).tobytes(),
        ),
        expected={"after": _registers(after, sums)},
    )


def _name(layout: OperandLayout) -> str:
    major = "mn" if layout.transposed else "k"
    return f"{major}-major swizzle {layout.span} lbo {layout.leading} sbo {layout.stride}"


def cases() -> list[HopperCase]:
    plain = tight_layout(128, False, ROWS)
    found = []
    for span, a_major, b_major in product(SPANS, (False, True), (False, True)):
        spread = spread_layout(span, a_major), spread_layout(span, b_major)
        tight = tight_layout(span, a_major, ROWS), tight_layout(span, b_major, 64)
        found += [product_case(64, *spread), product_case(64, *tight)]
    for n, b_major in product((8, 104, 256), (False, True)):
        found.append(product_case(n, plain, tight_layout(128, b_major, n), registers=True))
    found += [
        product_case(256, plain, spread_layout(64, True)),
        product_case(64, plain, plain, dtype="bf16"),
        product_case(64, plain, plain, dtype="bf16", registers=True),
        product_case(64, plain, plain, accumulate=False),
    ]
    for span, n in product(SPANS, (64, 136)):
        b = tight_layout(span, False, n)
        found.append(product_case(n, tight_layout(span, False, ROWS), b, dtype="e4m3"))
        found.append(product_case(n, plain, b, dtype="e4m3", registers=True))
    found.append(product_case(64, plain, plain, dtype="e4m3", accumulate=False))
    for dtype, signs in product(("f16", "bf16", "tf32"), ((-1, 1), (1, -1), (-1, -1))):
        found.append(
            product_case(64, plain, tight_layout(64, False, ROWS), dtype=dtype, signs=signs)
        )
    for dtype, sums in (("tf32", "f32"), ("e5m2", "f32"), ("s8", "s32"), ("f16", "f16")):
        narrow = tight_layout(64, False, ROWS)
        found += [
            product_case(64, plain, narrow, dtype=dtype, sums=sums),
            product_case(24, plain, narrow, dtype=dtype, sums=sums, registers=True),
        ]
    return found
