// SPDX-License-Identifier: Apache-2.0
// Where K and V of 8 bits arrive, behind the shared memory of a kernel of 16 bits: a tile of plain rows
// and a pair of mbarriers for every stage. The producer fills them, and the converter empties them.
#pragma once
#include <fa/sm90/shared_memory.cuh>

namespace fa::sm90 {

template <int Columns, int Rows>
struct LandingTile {
  static constexpr int kCount = 1;  // panels
  static constexpr int kColumns = Columns;
  static constexpr int kRows = Rows;
  static constexpr int kRowBytes = Columns;
  static constexpr int kBytes = Rows * kRowBytes;

  u32 address;

  __device__ u32 panel(int) const { return address; }
};

template <class Config>
class LandingMemory : public SharedMemory<Config> {
  using Converted = SharedMemory<Config>;
  using ConvertedTile = typename Converted::KVTile;
  static constexpr int kStages = Config::kStages;

 public:
  using KVTile = LandingTile<ConvertedTile::kCount * ConvertedTile::kColumns, Config::kBC>;
  static constexpr int kBytes =
      Converted::kBytes + 2 * kStages * KVTile::kBytes + Config::kLandingBarrierBytes;
  static_assert(Config::kLandingColumns == KVTile::kColumns, "columns of a box of K or V");

  __device__ explicit LandingMemory(u32 base) : Converted(base), base_(base + Converted::kBytes) {}

  __device__ KVTile k(int stage) const { return {base_ + stage * KVTile::kBytes}; }
  __device__ KVTile v(int stage) const { return k(kStages + stage); }

  __device__ ptx::Mbarrier k_full(int stage) const { return barrier(0, stage); }
  __device__ ptx::Mbarrier k_empty(int stage) const { return barrier(1, stage); }
  __device__ ptx::Mbarrier v_full(int stage) const { return barrier(2, stage); }
  __device__ ptx::Mbarrier v_empty(int stage) const { return barrier(3, stage); }

  // Every warp that converts arrives once at an empty barrier.
  __device__ void init_barriers() const {
    constexpr int kConverters = Config::kConvertingWarps;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(k_full(stage), 1);
      ptx::mbarrier_init(v_full(stage), 1);
      ptx::mbarrier_init(k_empty(stage), kConverters);
      ptx::mbarrier_init(v_empty(stage), kConverters);
    }
    Converted::init_barriers();
  }

 private:
  static_assert(4 * kStages * ptx::kMbarrierBytes <= Config::kLandingBarrierBytes);

  __device__ ptx::Mbarrier barrier(int kind, int stage) const {
    return {k(2 * kStages).address + (kind * kStages + stage) * ptx::kMbarrierBytes};
  }

  const u32 base_;
};

}  // namespace fa::sm90
