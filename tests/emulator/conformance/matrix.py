# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix and mma: which lane holds what, and the products themselves."""

from __future__ import annotations

import numpy as np

from tests.emulator.conformance.case import WARP, Array, Case, Part, bits

TILE_ROWS = 64  # rows of 16 bytes in shared memory
SHARED_TILE = f"""
  __shared__ __align__(128) u32 tile[{TILE_ROWS * 4}];
  for (int j = threadIdx.x; j < {TILE_ROWS * 4}; j += {WARP}) tile[j] = in0[j];
  __syncthreads();
"""
ADDRESS = "  const u32 base = static_cast<u32>(__cvta_generic_to_shared(tile));\n"


def _row_of_lane(lane: int) -> int:
    """The row a lane names: all 32 differ, and none is where a linear count would put it."""
    return (lane * 7 + 3) % TILE_ROWS


def _tile(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 16, (TILE_ROWS, 8)).astype(np.uint16)


def _words(halves: Array) -> Array:
    return np.ascontiguousarray(halves).reshape(-1).view(np.uint32)


def _matrices(tile: Array, count: int) -> list[Array]:
    return [tile[[_row_of_lane(8 * m + r) for r in range(8)]] for m in range(count)]


def ldmatrix(count: int, trans: bool) -> Case:
    tile = _tile(20 + count)
    expected = np.empty((count, WARP, 2), np.uint16)
    for m, matrix in enumerate(_matrices(tile, count)):
        source = matrix.T if trans else matrix
        for lane in range(WARP):
            expected[m, lane] = source[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
    name = f"ldmatrix.x{count}{'.trans' if trans else ''}"
    registers = ", ".join(f"%{k}" for k in range(count))
    outputs = ", ".join(f'"=r"(r[{k}])' for k in range(count))
    body = (
        SHARED_TILE
        + ADDRESS
        + f"  u32 r[{count}];\n"
        + f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}'
        + f'.shared.b16 {{{registers}}}, [%{count}];" : {outputs}'
        + f' : "r"(base + (i * 7 + 3) % {TILE_ROWS} * 16) : "memory");\n'
        + f"  for (int k = 0; k < {count}; ++k) out[k * {WARP} + i] = r[k];"
    )
    return Case(name, body, (_words(tile),), (Part(name, _words(expected)),))


def stmatrix(count: int, trans: bool) -> Case:
    halves = _tile(30 + count)[: 16 * count].reshape(count, WARP, 4)[:, :, :2].copy()
    tile = np.zeros((TILE_ROWS, 8), np.uint16)
    for m in range(count):
        matrix = np.empty((8, 8), np.uint16)
        for lane in range(WARP):
            matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2] = halves[m, lane]
        for r in range(8):
            tile[_row_of_lane(8 * m + r)] = (matrix.T if trans else matrix)[r]
    name = f"stmatrix.x{count}{'.trans' if trans else ''}"
    registers = ", ".join(f"%{k + 1}" for k in range(count))
    sources = ", ".join(f'"r"(in0[{k} * {WARP} + i])' for k in range(count))
    body = (
        f"  __shared__ __align__(128) u32 tile[{TILE_ROWS * 4}];\n"
        + f"  for (int j = i; j < {TILE_ROWS * 4}; j += {WARP}) tile[j] = 0;\n"
        + "  __syncthreads();\n"
        + ADDRESS
        + f'  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}'
        + f'.shared.b16 [%0], {{{registers}}};" :: "r"(base + (i * 7 + 3) % {TILE_ROWS} * 16), '
        + f'{sources} : "memory");\n'
        + "  __syncthreads();\n"
        + f"  for (int j = i; j < {TILE_ROWS * 4}; j += {WARP}) out[j] = tile[j];"
    )
    return Case(name, body, (_words(halves),), (Part(name, _words(tile)),), arch="sm_90a")


def _operand(values: Array, dtype: str) -> Array:
    """Float values as 16-bit patterns; the values are exact in either format."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (bits(values) >> 16).astype(np.uint16)


def mma(dtype: str) -> Case:
    """Small integers: every sum is exact, so every bit is determined."""
    rng = np.random.default_rng(40)
    a = rng.integers(-8, 9, (16, 16)).astype(np.float32)
    b = rng.integers(-8, 9, (16, 8)).astype(np.float32)
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.float32)
    a_bits, b_bits = _operand(a, dtype), _operand(b, dtype)
    a_words, b_words = np.empty((4, WARP, 2), np.uint16), np.empty((2, WARP, 2), np.uint16)
    c_words, d_words = np.empty((4, WARP), np.float32), np.empty((4, WARP), np.float32)
    for lane in range(WARP):
        group, pair = lane // 4, 2 * (lane % 4)
        for k in range(4):
            row, column = group + 8 * (k % 2), pair + 8 * (k // 2)
            a_words[k, lane] = a_bits[row, column : column + 2]
            row, column = group + 8 * (k // 2), pair + k % 2
            c_words[k, lane] = c[row, column]
            d_words[k, lane] = (a @ b + c)[row, column]
        for k in range(2):
            b_words[k, lane] = b_bits[pair + 8 * k : pair + 8 * k + 2, group]
    name = f"mma.m16n8k16 {dtype}"
    body = (
        "  float d[4];\n"
        f'  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 '
        '{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"'
        ' : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])'
        ' : "r"(in0[i]), "r"(in0[32 + i]), "r"(in0[64 + i]), "r"(in0[96 + i]),'
        ' "r"(in1[i]), "r"(in1[32 + i]),'
        ' "f"(__uint_as_float(in2[i])), "f"(__uint_as_float(in2[32 + i])),'
        ' "f"(__uint_as_float(in2[64 + i])), "f"(__uint_as_float(in2[96 + i])));\n'
        "  for (int k = 0; k < 4; ++k) out[32 * k + i] = __float_as_uint(d[k]);"
    )
    inputs = (_words(a_words), _words(b_words), bits(c_words).ravel())
    return Case(name, body, inputs, (Part(name, bits(d_words).ravel()),))


def cases() -> list[Case]:
    return [
        *(ldmatrix(count, trans) for count in (1, 2, 4) for trans in (False, True)),
        *(stmatrix(count, trans) for count in (1, 2, 4) for trans in (False, True)),
        mma("f16"),
        mma("bf16"),
    ]
