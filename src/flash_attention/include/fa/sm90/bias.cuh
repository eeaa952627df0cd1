// SPDX-License-Identifier: Apache-2.0
// A captured tensor that scores read at every query and key, such as a bias. The producer loads a block of it
// beside K, and consumers read it into the places where they have the scores.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90::bias {

// Registers are enough to read the bias of a block while its scores are being computed.
template <class Config>
inline constexpr bool kReadsBiasAhead = Config::kConsumers < 3 && Config::kDHead <= 128;

struct Loaded {
  // The bias of a block.
  template <class Config>
  class Of {
    using BiasTile = typename SharedMemory<Config>::BiasTile;

   public:
    // The rows of this warp in a stage of K. The producer's warps come before those of the consumers.
    __device__ void look(const SharedMemory<Config>& smem, int stage) {
      const int row = warp_id() * kWarpRows - kWarpgroupRows + lane_id() % 16;
      lane_ = {smem.bias(stage).chunk(row, lane_id() / 16)};
      if constexpr (kReadsBiasAhead<Config>)
#pragma unroll
        for (int n = 0; n < Config::kBC / 16; ++n) lane_.read(pairs_[n], n);
    }

    // A place where the function can read it.
    struct At : attn::Place {
      const Of& bias;
      // The elements of a lane of the n-th 16 keys.
      __device__ void read_bias(u32 (&pairs)[4], int n) const {
        if constexpr (!kReadsBiasAhead<Config>) return bias.lane_.read(pairs, n);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = bias.pairs_[n][i];
      }
    };
    __device__ At at(const attn::Place& place) const { return {place, *this}; }

   private:
    struct Lane {
      u32 first;  // the address of its chunk of the first 16 keys
      __device__ void read(u32 (&pairs)[4], int n) const {
        constexpr int kSteps = BiasTile::kSteps;
        // The swizzle flips bits of the chunk's number, and so the chunk is flipped, not added.
        const u32 of_panel = first ^ n % kSteps * 2 * kChunkBytes;
        ptx::ldmatrix_x4(pairs, of_panel + n / kSteps * BiasTile::kPanelBytes);
      }
    };
    Lane lane_;
    u32 pairs_[Config::kBC / 16][4];
  };

  // All lanes of this warp have read the bias, which the copy engine may overwrite now.
  static __device__ void was_read() {
    ptx::fence_proxy_async();
    __syncwarp();
  }

  // Loads the bias of a key block. The barrier of K in the stage waits for its bytes, too.
  template <class Config>
  static __device__ void load(const SharedMemory<Config>& smem, const TensorMap& map, int stage,
                              const Tile& tile, int block, const ForwardKernelArgs& args) {
    using BiasTile = typename SharedMemory<Config>::BiasTile;
    const auto plane = Config::Function::plane(args, tile.batch, tile.head);
#pragma unroll
    for (int p = 0; p < BiasTile::kCount; ++p)
      ptx::tma_load_4d(smem.bias(stage).panel(p), map, smem.k_pipeline().full(stage),
                       block * Config::kBC + p * BiasTile::kColumns,
                       tile.q_block * Shape<Config>::kBR, plane.inner, plane.outer);
  }
};

}  // namespace fa::sm90::bias
