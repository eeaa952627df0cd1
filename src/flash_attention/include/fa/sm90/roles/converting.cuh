// SPDX-License-Identifier: Apache-2.0
// Warp specialisation for K and V of 8 bits: one thread loads, the other warps of its warpgroup convert
// to 16 bits, and the consumers compute.
#pragma once
#include <fa/sm90/converter.cuh>
#include <fa/sm90/specialise.cuh>

namespace fa::sm90::roles {

struct Converting {
  template <class Config>
  static __device__ void run(const TensorMaps& maps, const ForwardKernelArgs& args, u32 base) {
    const LandingMemory<Config> smem(base);
    specialise<Config>(maps, args, smem, [&](const LandingMemory<Config>& smem) {
      Converter<Config>(smem, args, threadIdx.x - kWarpSize).run();
    });
  }
};

}  // namespace fa::sm90::roles
