// SPDX-License-Identifier: Apache-2.0
// Writes of four 8x8 matrices of 16-bit elements to shared memory, the mirror of ldmatrix: lane l
// names row l % 8 of matrix l / 8 and gives the elements (l / 4, 2 (l % 4) .. + 1) of each.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline void stmatrix_x4(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The transposes of the matrices: the lane's elements are (2 (l % 4) .. + 1, l / 4) of each.
__device__ inline void stmatrix_x4_trans(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace fa::ptx
