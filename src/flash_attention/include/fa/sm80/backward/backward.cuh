// SPDX-License-Identifier: Apache-2.0
// The main kernels of a backward pass: gradients of the rows that a CTA owns.
#pragma once
#include <fa/sm80/backward/block.cuh>
#include <fa/sm80/backward/slots.cuh>

namespace fa::sm80::backward {

template <class Config>
__device__ void run(const BackwardKernelArgs& args, const void* smem) {
  static_assert(check_slots<Config>());
  Block<Config> block(args, ptx::smem_address(smem));
  if (block.empty()) return;
  if (block.visits_any()) Config::Schedule::run(block);
  block.store();
}

}  // namespace fa::sm80::backward
