// SPDX-License-Identifier: Apache-2.0
// Warp specialisation: one thread loads, the consumers compute.
#pragma once
#include <fa/sm90/specialise.cuh>

namespace fa::sm90::roles {

struct Specialised {
  template <class Config>
  static __device__ void run(const TensorMaps& maps, const ForwardKernelArgs& args, u32 base) {
    specialise<Config>(maps, args, SharedMemory<Config>(base), [](const SharedMemory<Config>&) {});
  }
};

}  // namespace fa::sm90::roles
