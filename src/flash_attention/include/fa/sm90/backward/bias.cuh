// SPDX-License-Identifier: Apache-2.0
// A captured tensor that scores read at every query and key, such as a bias. The producer loads a block of it
// beside Q, and key warpgroups read it transposed, into the places where they have the scores.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward::bias {

struct Loaded {
  // The bias of a block.
  template <class Config>
  class Of {
    using Smem = SharedMemory<Config>;

   public:
    __device__ void wait() {
      Smem::bias_pipeline().wait(0, parity_);  // it has arrived
      parity_ ^= 1;
    }
    // This warp will not read it again.
    __device__ void release() const {
      ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
      __syncwarp();              // of all lanes
      Smem::bias_pipeline().release(0);
    }

    // A place where the function can read it.
    struct At : attn::Place {
      int warp_key;  // of the tile
      // The elements of a lane of the n-th 16 queries.
      __device__ void read_bias(u32 (&pairs)[4], int n) const {
        ptx::ldmatrix_x4_trans(pairs,
                               Smem::bias().chunk(16 * n + lane_id() / 16 * 8 + lane_id() % 8,
                                                  warp_key / 8 + lane_id() / 8 % 2));
      }
    };
    static __device__ At at(const attn::Place& place, int warp_key) { return {place, warp_key}; }

   private:
    u32 parity_ = 0;
  };
};

}  // namespace fa::sm90::backward::bias
