// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: Q of each warpgroup, ring buffers of K and V, each followed by its tangent, then
// the mbarriers and the mailbox for the next tile.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::tangent {

// A tile, and after it that of its tangent. One barrier says that both are full.
template <class Tile>
struct Pair {
  static constexpr int kBytes = 2 * Tile::kBytes;

  u32 address;

  __device__ Tile value() const { return Tile(address); }
  __device__ Tile tangent() const { return value().after(1); }
};

// A row or column operand of the tile that is `pairs` pairs after the first one, and that of its tangent.
template <class Operand>
__device__ Operand value_of(Operand first, int pairs) {
  return first.after(2 * pairs);
}
template <class Operand>
__device__ Operand tangent_of(Operand first, int pairs) {
  return first.after(2 * pairs + 1);
}

template <class Config>
class SharedMemory {
 public:
  using QPipeline = Pipeline<Pair<typename Shape<Config>::QTile>, Config::kConsumers>;
  using KVPipeline = Pipeline<Pair<typename Shape<Config>::KTile>, Config::kStages>;

 private:
  static constexpr int kK = QPipeline::kTileBytes;
  static constexpr int kV = kK + KVPipeline::kTileBytes;
  static constexpr int kQBarriers = kV + KVPipeline::kTileBytes;
  static constexpr int kKBarriers = kQBarriers + QPipeline::kBarrierBytes;
  static constexpr int kVBarriers = kKBarriers + KVPipeline::kBarrierBytes;
  static constexpr int kMail = kVBarriers + KVPipeline::kBarrierBytes;

 public:
  static constexpr int kBytes = kQBarriers + Config::kBarrierBytes;
  static_assert(Mail::end(kMail) <= kBytes);

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ QPipeline q_pipeline() const { return {base_, base_ + kQBarriers}; }
  __device__ KVPipeline k_pipeline() const { return {base_ + kK, base_ + kKBarriers}; }
  __device__ KVPipeline v_pipeline() const { return {base_ + kV, base_ + kVBarriers}; }
  __device__ Mail mail() const { return Mail(base_ + kMail); }

  // Every warp of a consumer arrives once at an empty barrier.
  __device__ void init_barriers() const {
    constexpr int kReaders = Config::kConsumers * kWarpgroupWarps;
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w) q_pipeline().init(w, 1, kWarpgroupWarps);
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage) {
      k_pipeline().init(stage, 1, kReaders);
      v_pipeline().init(stage, 1, kReaders);
    }
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kReaders);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  const u32 base_;
};

}  // namespace fa::sm90::tangent
