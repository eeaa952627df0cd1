# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of every width, asynchronous copies with zero fill, atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator.conformance.case import WARP, Array, Case, Part, bits

BYTES = np.random.default_rng(50).integers(0, 256, 1024).astype(np.uint8)
WORDS = np.random.default_rng(51).integers(0, 1 << 32, 1024, np.uint64).astype(np.uint32)


def _narrow_loads() -> Case:
    loads = {
        "ld.global.u8": BYTES[:WARP],
        "ld.global.s8": BYTES[:WARP].view(np.int8).astype(np.int32),
        "ld.global.u16": BYTES[: 2 * WARP].view(np.uint16),
        "ld.global.s16": BYTES[: 2 * WARP].view(np.int16).astype(np.int32),
        "ld.global.u32": BYTES[: 4 * WARP].view(np.uint32),
        "ld.global.nc.u32": BYTES[: 4 * WARP].view(np.uint32),
        "ld.volatile.global.u32": BYTES[: 4 * WARP].view(np.uint32),
    }
    lines = []
    for k, (name, _) in enumerate(loads.items()):
        step = {"8": 1, "6": 2, "2": 4}[name[-1]]
        lines.append(
            f'  {{ u32 r; asm volatile("{name} %0, [%1];" : "=r"(r) : "l"(in0 + {step} * i)'
            f' : "memory"); out[{k} * n + i] = r; }}'
        )
    parts = tuple(Part(name, np.asarray(value).astype(np.uint32)) for name, value in loads.items())
    return Case("loads by width", "\n".join(lines), (BYTES,), parts)


def _vectors() -> Case:
    """Through vectors of two and four: global, shared, and back in another order."""
    body = """
  __shared__ __align__(16) u32 shared[32 * 4];
  const u32 mine = static_cast<u32>(__cvta_generic_to_shared(shared)) + 16 * i;
  u32 a, b, c, d;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(in0 + 4 * i) : "memory");
  asm volatile("st.shared.v2.u32 [%0], {%2, %1}; st.shared.v2.u32 [%0+8], {%4, %3};"
               :: "r"(mine), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  __syncthreads();
  const u32 other = static_cast<u32>(__cvta_generic_to_shared(shared)) + 16 * (i ^ 5);
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(other) : "memory");
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(out + 4 * i), "r"(d), "r"(c), "r"(b), "r"(a) : "memory");
"""
    rows = WORDS[:128].reshape(WARP, 4)
    expected = rows[np.arange(WARP) ^ 5][:, [2, 3, 0, 1]]
    return Case("vectors", body, (WORDS[:128],), (Part("v2 and v4", expected.ravel()),))


def _narrow_stores() -> Case:
    body = """
  out[i] = in0[i];
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(out + i);
  asm volatile("{.reg .b16 h; cvt.u16.u32 h, %1; st.global.u8 [%0+1], h;}"
               :: "l"(bytes), "r"(in0[32 + i]) : "memory");
  asm volatile("{.reg .b16 h; cvt.u16.u32 h, %1; st.global.u16 [%0+2], h;}"
               :: "l"(bytes), "r"(in0[64 + i]) : "memory");
"""
    low, byte, half = WORDS[:96].reshape(3, WARP)
    expected = (low & 0xFF) | (byte & 0xFF) << 8 | (half & 0xFFFF) << 16
    return Case("stores by width", body, (WORDS[:96],), (Part("st.u8 st.u16", expected),))


def _zero_fill(width: int, cache: str, hint: str) -> tuple[str, Array]:
    """Lane l copies l % (width + 1) bytes of `width`; the rest is zero."""
    source = WORDS[:128].view(np.uint8).reshape(WARP, 16)
    expected = np.full((WARP, 16), 0xAA, np.uint8)
    for lane in range(WARP):
        size = lane % (width + 1)
        expected[lane, :width] = 0
        expected[lane, :size] = source[lane, :size]
    text = (
        f'  asm volatile("cp.async.{cache}.shared.global{hint} [%0], [%1], {width}, %2;"'
        f' :: "r"(mine), "l"(in0 + 4 * i), "r"(i % {width + 1}) : "memory");\n'
    )
    return text, expected.reshape(-1).view(np.uint32)


def _async_copy(width: int, cache: str, hint: str = "") -> Case:
    copy, expected = _zero_fill(width, cache, hint)
    body = (
        "  __shared__ __align__(16) u32 shared[32 * 4];\n"
        "  const u32 mine = static_cast<u32>(__cvta_generic_to_shared(shared)) + 16 * i;\n"
        "  for (int k = 0; k < 4; ++k) shared[4 * i + k] = 0xAAAAAAAA;\n"
        + copy
        + '  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");\n'
        "  __syncthreads();\n"
        "  for (int k = 0; k < 4; ++k) out[4 * i + k] = shared[4 * i + k];"
    )
    name = f"cp.async.{cache}{hint} {width}"
    return Case(name, body, (WORDS[:128],), (Part(name, expected),))


def _copy_groups() -> Case:
    """Three groups in flight; each is read when all but the later ones have landed."""
    copy = (
        '  asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.commit_group;"'
        ' :: "r"(mine + {k} * 512), "l"(in0 + {k} * 128 + 4 * i) : "memory");\n'
    )
    read = (
        '  asm volatile("cp.async.wait_group {pending};" ::: "memory");\n'
        "  __syncthreads();\n"
        "  for (int j = 0; j < 4; ++j)"
        " out[{k} * 128 + 4 * i + j] = shared[{k} * 128 + 4 * (i ^ 1) + j];\n"
    )
    body = (
        "  __shared__ __align__(16) u32 shared[3 * 32 * 4];\n"
        "  const u32 mine = static_cast<u32>(__cvta_generic_to_shared(shared)) + 16 * i;\n"
        + "".join(copy.format(k=k) for k in range(3))
        + "".join(read.format(k=k, pending=2 - k) for k in range(3))
    )
    rows = WORDS[:384].reshape(3, WARP, 4)[:, np.arange(WARP) ^ 1]
    return Case("cp.async groups", body, (WORDS[:384],), (Part("wait_group", rows.ravel()),))


ATOMICS: dict[str, Callable[[Array], Any]] = {
    "add.u32": lambda w: np.uint32(w.astype(np.uint64).sum() & 0xFFFFFFFF),
    "min.u32": lambda w: min(w.min(), np.uint32(0)),
    "max.u32": lambda w: w.max(),
    "max.s32": lambda w: np.uint32(max(0, int(w.view(np.int32).max()))),
    "or.b32": lambda w: np.bitwise_or.reduce(w),
    "xor.b32": lambda w: np.bitwise_xor.reduce(w),
    "and.b32": lambda w: np.uint32(0),
}


def _atomics() -> Case:
    """All threads of two CTAs on one word each; the words start at zero."""
    lines = ["  const u32 x = in0[i];"]
    for k, name in enumerate(ATOMICS):
        lines.append(
            f'  {{ u32 old; asm volatile("atom.global.{name} %0, [%1], %2;"'
            f' : "=r"(old) : "l"(out + {k}), "r"(x) : "memory"); }}'
        )
    slot = len(ATOMICS)
    lines += [
        f'  asm volatile("red.global.add.u32 [%0], 3;" :: "l"(out + {slot}) : "memory");',
        f'  {{ u32 old; asm volatile("atom.global.cas.b32 %0, [%1], 0, 7;"'
        f' : "=r"(old) : "l"(out + {slot + 1}) : "memory");'
        f' asm volatile("red.global.add.u32 [%0], %1;"'
        f' :: "l"(out + {slot + 2}), "r"(old == 0 ? 1 : 0) : "memory"); }}',
        f'  asm volatile("red.global.add.f32 [%0], 0f3F800000;" :: "l"(out + {slot + 3})'
        f' : "memory");',
    ]
    size = 128
    totals = [function(WORDS[:size]) for function in ATOMICS.values()]
    results = [*totals, 3 * size, 7, 1, int(np.float32(size).view(np.uint32))]
    names = [f"atom.{name}" for name in ATOMICS] + ["red.add", "atom.cas", "one winner", "red f32"]
    parts = tuple(
        Part(name, np.array([int(value)], np.uint64).astype(np.uint32))
        for name, value in zip(names, results, strict=True)
    )
    return Case("atomics", "\n".join(lines), (WORDS[:size],), parts, threads=64, blocks=2)


def _float_additions() -> Case:
    """All threads of two CTAs add to the same floats, alone and in vectors, then to subnormals.

    The numbers are whole, so the order of the additions does not matter.
    """
    body = """
  const float x = i, y = 2 * i, z = i - 100, w = 1;
  float* const sums = reinterpret_cast<float*>(out);
  asm volatile("red.global.add.f32 [%0], %1;" :: "l"(sums), "f"(x) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" :: "l"(sums + 1), "f"(y) : "memory");
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};"
               :: "l"(sums + 2), "f"(x), "f"(z) : "memory");
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(sums + 4 + 4 * (i % 2)), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
  float before;
  asm volatile("atom.global.add.f32 %0, [%1], %2;"
               : "=f"(before) : "l"(sums + 12), "f"(w) : "memory");
  if (before == 127) sums[13] = before;
  if (i == 0) {
    const float tiny = __uint_as_float(0x00800000), less = __uint_as_float(0x00400000);
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"(sums + 14), "f"(less) : "memory");
    asm volatile("red.global.add.f32 [%0], %1; red.global.add.f32 [%0], %2;"
                 :: "l"(sums + 15), "f"(tiny + less), "f"(-tiny) : "memory");
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %1, %3};"
                 :: "l"(sums + 16), "f"(less), "f"(tiny), "f"(-less) : "memory");
  }
"""
    i = np.arange(128)
    halves = [i[i % 2 == k] for k in (0, 1)]
    sums = [i.sum(), 2 * i.sum(), i.sum(), (i - 100).sum()]
    for half in halves:
        sums += [half.sum(), 2 * half.sum(), (half - 100).sum(), 64]
    plain = bits(np.array([*sums, 128, 127], np.float32))
    flushed = np.array([0, 0, 0, 0x00800000, 0, 0], np.uint32)
    parts = (
        Part("red f32", plain[:2]),
        Part("red v2.f32", plain[2:4]),
        Part("red v4.f32", plain[4:12]),
        Part("atom f32", plain[12:]),
        Part("subnormals", flushed),
    )
    return Case("float additions", body, (), parts, threads=64, blocks=2, arch="sm_90a")


def _tickets() -> Case:
    """Every thread draws a ticket; each number is drawn once, whatever the order."""
    body = """
  u32 ticket, old;
  asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(out + 8) : "memory");
  asm volatile("atom.global.or.b32 %0, [%1], %2;"
               : "=r"(old) : "l"(out + ticket / 32), "r"(1u << ticket % 32) : "memory");
"""
    expected = np.array([0xFFFFFFFF] * 8 + [256], np.uint32)
    return Case("tickets", body, (), (Part("atom.add", expected),), threads=128, blocks=2)


def cases() -> list[Case]:
    return [
        _narrow_loads(),
        _vectors(),
        _narrow_stores(),
        *(_async_copy(width, "ca") for width in (4, 8, 16)),
        _async_copy(16, "cg"),
        _async_copy(16, "cg", ".L2::128B"),
        _copy_groups(),
        _atomics(),
        _float_additions(),
        _tickets(),
    ]
