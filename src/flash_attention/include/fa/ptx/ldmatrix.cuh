// SPDX-License-Identifier: Apache-2.0
// Reads of four 8x8 matrices of 16-bit elements from shared memory. Lane l names row l % 8 of
// matrix l / 8; it receives of each matrix the elements (l / 4, 2 (l % 4) .. + 1), or of its
// transpose.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

__device__ inline void ldmatrix_x4(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

__device__ inline void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

}  // namespace fa::ptx
