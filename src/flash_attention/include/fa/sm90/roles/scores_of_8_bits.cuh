// SPDX-License-Identifier: Apache-2.0
// Warp specialisation for Q, K and V of 8 bits: scores are products of 8 bits. One warp of the producer's
// warpgroup loads, and the others convert V to 16 bits, for products with the weights.
#pragma once
#include <fa/sm90/roles/converting.cuh>
#include <fa/sm90/roles/specialised.cuh>

namespace fa::sm90 {

// Converts every V that has arrived. `thread` counts those that convert.
template <class Config>
__device__ void convert_values(const SharedMemory<Config>& smem, const ForwardKernelArgs& args,
                               int thread) {
  const auto landed = smem.v_pipeline();
  const auto converted = smem.converted_pipeline();
  Ring<Config::kStages> from;
  Ring<SharedMemory<Config>::kConvertedStages> to;
  Tile tile;
  attn::Sequence sequence;
  for (u32 parity = 0; take_tile<Config>(smem.mail(), args, tile, sequence, parity); parity ^= 1) {
    const auto [first, end] = visited_blocks<Config>(tile, sequence, args);
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      landed.wait(from);      // the tile of 8 bits has arrived
      converted.acquire(to);  // the consumer has released that of 16 bits
      convert_tile<Config, kConverters<Config> * kWarpSize>(
          landed.tile(from.stage), converted.tile(to.stage), typename Config::Descale::Rows{},
          thread);
      pass_on(converted.full(to.stage), landed.empty(from.stage));
      from.advance();
      to.advance();
    }
  }
}

}  // namespace fa::sm90

namespace fa::sm90::roles {

struct ScoresOf8Bits {
  template <class Config>
  static __device__ void run(const TensorMaps& maps, const ForwardKernelArgs& args, u32 base) {
    specialise<Config>(maps, args, SharedMemory<Config>(base),
                       [&](const SharedMemory<Config>& smem) {
                         convert_values(smem, args, threadIdx.x - kFirstHelper<Config>);
                       });
  }

  template <class Config>
  static __device__ void wait_values(const SharedMemory<Config>& smem,
                                     const Ring<Config::kStages>& at, bool& /*is_there*/) {
    smem.converted_pipeline().wait(smem.v_buffer(at.stage), smem.v_parity(at));
  }
  template <class Config>
  static __device__ void release_values(const SharedMemory<Config>& smem,
                                        const Ring<Config::kStages>& at) {
    smem.converted_pipeline().release(smem.v_buffer(at.stage));
  }
};

}  // namespace fa::sm90::roles
