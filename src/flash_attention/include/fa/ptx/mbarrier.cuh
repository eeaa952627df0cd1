// SPDX-License-Identifier: Apache-2.0
// mbarriers: 8-byte counters in shared memory. A phase ends when all arrivals and all announced
// bytes are in; its parity flips with every phase. A wait for parity p passes once the phase of that
// parity has ended, so a fresh barrier lets a wait for parity 1 pass.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

inline constexpr int kMbarrierBytes = 8;

struct Mbarrier {
  u32 address;  // in shared memory
};

__device__ inline void mbarrier_init(Mbarrier barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(arrivals));
}

// Makes the initialised barriers visible to TMA.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(Mbarrier barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
}

__device__ inline void mbarrier_arrive_expect(Mbarrier barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

// Adds to the expected bytes without arriving.
__device__ inline void mbarrier_expect(Mbarrier barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_wait(Mbarrier barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
}

}  // namespace fa::ptx
