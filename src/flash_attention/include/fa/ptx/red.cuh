// SPDX-License-Identifier: Apache-2.0
// Additions to global memory that return nothing.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline void red_add(float* gmem, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(gmem), "f"(x) : "memory");
}

// NOTE: PTX ISA 9.7.13, red: vectors need sm_90. The address is a multiple of 16 bytes.
__device__ inline void red_add_4(float* gmem, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(gmem), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

}  // namespace fa::ptx
