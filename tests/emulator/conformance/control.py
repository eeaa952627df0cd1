# SPDX-License-Identifier: Apache-2.0
"""Divergent loops, threads that leave early, barriers of parts of a block."""

from __future__ import annotations

import numpy as np

from tests.emulator.conformance.case import Array, Case, Part

THREADS = 128
STARTS = np.random.default_rng(60).integers(1, 400, THREADS).astype(np.uint32)


def _collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


def _divergent_loop() -> Case:
    body = """
  u32 x = in0[i], steps = 0;
#pragma unroll 1
  while (x != 1) {
    x = x % 2 ? 3 * x + 1 : x / 2;
    ++steps;
  }
  out[i] = steps;
"""
    expected = np.array([_collatz_steps(int(n)) for n in STARTS], np.uint32)
    return Case("divergent loop", body, (STARTS,), (Part("steps", expected),), threads=THREADS)


def _early_exit() -> Case:
    """Threads that have returned are not waited for at a barrier."""
    body = """
  __shared__ u32 shared[128];
  shared[i] = in0[i];
  out[i] = 0;
  __syncthreads();
  if (i >= 64) return;
  const u32 x = shared[i + 64];
  __syncthreads();
  shared[i] = x + 1;
  __syncthreads();
  out[i] = shared[63 - i];
"""
    expected = np.zeros(THREADS, np.uint32)
    expected[:64] = (STARTS[64:] + 1)[::-1]
    return Case("early exit", body, (STARTS,), (Part("out", expected),), threads=THREADS)


def _named_barriers() -> Case:
    """Two producer warps arrive, two consumer warps wait; then each half syncs by itself."""
    body = """
  __shared__ u32 shared[128];
  const u32 x = in0[i];
  if (i < 64) {
    shared[i] = x;
    asm volatile("bar.arrive 1, 128;" ::: "memory");
    asm volatile("bar.sync 2, 64;" ::: "memory");
    out[i] = shared[i ^ 32];
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    shared[i] = shared[i - 64] * 2;
    asm volatile("bar.sync 3, 64;" ::: "memory");
    out[i] = shared[64 + (i ^ 33) % 64];
  }
"""
    first = STARTS[:64][np.arange(64) ^ 32]
    second = 2 * STARTS[:64][np.arange(64) ^ 33]
    expected = np.concatenate([first, second]).astype(np.uint32)
    return Case("named barriers", body, (STARTS,), (Part("out", expected),), threads=THREADS)


def _coordinates() -> Case:
    body = "  out[i] = threadIdx.x + 1000 * blockIdx.x + 100000 * blockDim.x + 10000 * gridDim.x;"
    index: Array = np.arange(192, dtype=np.uint32)
    expected = index % 64 + 1000 * (index // 64) + 100000 * 64 + 10000 * 3
    return Case("coordinates", body, (), (Part("ids", expected),), threads=64, blocks=3)


def cases() -> list[Case]:
    return [
        _divergent_loop(),
        _early_exit(),
        _named_barriers(),
        _coordinates(),
    ]
