// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory starts at a known address on sm_90, if a kernel has no other shared memory. Addresses
// are then constants: they take no registers, and those of stages stay in uniform registers.
#pragma once
#include <fa/ptx/memory.cuh>

namespace fa::sm90 {

inline constexpr u32 kSmemStart = 1024;

__device__ inline void check_smem_start(const void* smem) {
  if (ptx::smem_address(smem) != kSmemStart) __trap();
}

}  // namespace fa::sm90
