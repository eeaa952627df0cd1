// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: buffers of Q, ring buffers of K, the copies of O in fp32, ring buffers of V,
// then the mbarriers and the mailbox for the next tile.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90::fp8 {

// Two e4m3 elements take the place of a 16-bit one: in bytes, tiles of Q and K are 16-bit tiles of half the
// columns, and a step of 32 columns is one of 16.
template <class Config>
struct Tiles {
  using QTile = SharedTile<Config::kDHead / 2, kWarpgroupRows>;  // of one warpgroup
  using KTile = SharedTile<Config::kDHead / 2, Config::kBC>;
  using VTile =
      typename Config::Values::template Tile<Config::kDHead, Config::Sums::kRows, Config::kBC>;
};

template <class Config>
class SharedMemory {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using VTile = typename Tiles<Config>::VTile;
  static constexpr int kStages = Config::kStages;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kQBuffers = Config::kQBuffers;
  using QBarriers = PipelineBarriers<kQBuffers>;  // of the tiles of all warpgroups
  using KPipeline = Pipeline<KTile, kStages>;
  using VPipeline = Pipeline<VTile, kStages>;
  static constexpr int kK = kQBuffers * kConsumers * QTile::kBytes;
  static constexpr int kCopy = kK + KPipeline::kTileBytes;
  static constexpr int kCopyBytes =
      kWarpgroupSize * Config::Promotion::template kThreadBytes<Config::kDHead>;
  static constexpr int kV = kCopy + kConsumers * kCopyBytes;
  static constexpr int kQBarriers = kV + VPipeline::kTileBytes;
  static constexpr int kKBarriers = kQBarriers + QBarriers::kBarrierBytes;
  static constexpr int kVBarriers = kKBarriers + KPipeline::kBarrierBytes;
  static constexpr int kMail = kVBarriers + VPipeline::kBarrierBytes;

 public:
  static constexpr int kBytes = kQBarriers + Config::kBarrierBytes;
  static_assert(Mail::end(kMail) <= kBytes);

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ QBarriers q_pipeline() const { return {base_ + kQBarriers}; }
  __device__ KPipeline k_pipeline() const { return {base_ + kK, base_ + kKBarriers}; }
  __device__ VPipeline v_pipeline() const { return {base_ + kV, base_ + kVBarriers}; }
  __device__ Mail mail() const { return Mail(base_ + kMail); }
  __device__ QTile q(int buffer, int warpgroup) const {
    return QTile(base_).after(buffer * kConsumers + warpgroup);
  }
  __device__ KTile k(int stage) const { return k_pipeline().tile(stage); }
  __device__ VTile v(int stage) const { return v_pipeline().tile(stage); }
  // What this thread of a warpgroup has of the copy of O.
  __device__ u32 copy(int warpgroup) const {
    return base_ + kCopy + warpgroup * kCopyBytes + threadIdx.x % kWarpgroupSize * kChunkBytes;
  }

  // One thread fills, or the lanes that copy K; every warp of the consumers arrives once at an empty barrier.
  __device__ void init_barriers() const {
    constexpr int kWarps = kConsumers * kWarpgroupWarps;
#pragma unroll
    for (int buffer = 0; buffer < kQBuffers; ++buffer) q_pipeline().init(buffer, 1, kWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      k_pipeline().init(stage, Config::Pages::kArrivals, kWarps);
      v_pipeline().init(stage, 1, kWarps);
    }
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  const u32 base_;
};

}  // namespace fa::sm90::fp8
