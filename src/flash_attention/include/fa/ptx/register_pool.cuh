// SPDX-License-Identifier: Apache-2.0
// setmaxnreg: a warpgroup returns registers to its CTA's pool, or waits until it can take some.
#pragma once

namespace fa::ptx {

template <int Registers>
__device__ inline void shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ inline void grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace fa::ptx
