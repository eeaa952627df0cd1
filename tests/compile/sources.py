# SPDX-License-Identifier: Apache-2.0
"""Small translation units with the entry name the compiler expects."""

from __future__ import annotations

COPY = """\
extern "C" __global__ void flash_forward_kernel(float* x) { x[threadIdx.x] = x[1]; }
"""

TWICE = COPY.replace("x[1]", "2 * x[1]")

BROKEN = """\
extern "C" __global__ void flash_forward_kernel(float* x) {
  x[0] = undeclared_value;
}
"""

WITH_HEADER = """\
#include <fa/scale.cuh>

extern "C" __global__ void flash_forward_kernel(float* x) { x[threadIdx.x] = scale(x[1]); }
"""

SCALE_HEADER = """\
#pragma once

__device__ inline float scale(float x) { return 3 * x; }
"""

SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024, 2) flash_forward_kernel(float* x) {
  float held[80];
#pragma unroll
  for (int i = 0; i < 80; i++) held[i] = x[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 80; i++) x[i * 77 + threadIdx.x] = held[i] * held[79 - i];
}
"""


def slow_to_compile(steps: int = 1000) -> str:
    """A kernel whose unrolled loop keeps the compiler busy for about a second."""
    return f"""\
extern "C" __global__ void flash_forward_kernel(float* x) {{
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * 32 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < {steps}; i++) a[i % 64] = a[(i * 7 + 1) % 64] * a[(i * 5 + 2) % 64] + x[i];
#pragma unroll
  for (int i = 0; i < 64; i++) x[i * 32 + threadIdx.x] = a[i];
}}
"""
