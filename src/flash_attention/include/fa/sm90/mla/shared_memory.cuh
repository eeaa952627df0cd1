// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: Q and two blocks of K, then what the two warpgroups exchange.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>

namespace fa::sm90::mla {

// The tensor maps of q and k. V is part of K, and O is stored from registers.
struct TensorMaps {
  const TensorMap &q, &k;

  __device__ void prefetch() const {
    ptx::tma_prefetch_map(q);
    ptx::tma_prefetch_map(k);
  }
};

// The shared tiles of MLA decoding. A row of K is the latent vector, which is a row of V too, and the
// rotary columns. After the scores of a block nothing reads its rotary columns, so that P is written there.
using split_v::kHalves, split_v::kStages;

template <class Config>
struct Tiles {
  static constexpr int kHalfColumns = Config::kDV / kHalves;
  static constexpr int kRotaryColumns = Config::kDHead - Config::kDV;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KTile;
  using VTile = SharedTile<Config::kDV, Config::kBC>;
  using HalfTile = SharedTile<kHalfColumns, Config::kBC>;
  using RotaryTile = SharedTile<kRotaryColumns, Config::kBC>;
  using PTile = SharedTile<Config::kBC, kWarpgroupRows>;

  static_assert(HalfTile::kPanelBytes == KTile::kPanelBytes && kHalfColumns % KTile::kColumns == 0,
                "a half of V is whole panels of K");
  static_assert(PTile::kBytes <= RotaryTile::kBytes, "P fits where the rotary columns were");
};

// The columns of a block of K are loaded and released in three parts: the halves of V, and the rest.
inline constexpr int kRotaryPart = kHalves;
inline constexpr int kColumnParts = kHalves + 1;
inline constexpr int kRotaryIndex = 1;  // after the first half

// The parts of a stage in the order of loads and products. The half that the stage's own warpgroup multiplies
// with V comes last, because it is released last.
__device__ inline int nth_part(int stage, int n) {
  return n == kRotaryIndex ? kRotaryPart : n == 0 ? 1 - stage : stage;
}

using KBarriers = PipelineBarriers<kStages, kColumnParts>;
using SBarriers = PipelineBarriers<kStages, 1, 0>;  // S stays in registers

template <class Config>
using Exchange =
    split_v::ExchangeMemory<Config,
                            Tiles<Config>::QTile::kBytes + kStages * Tiles<Config>::KTile::kBytes,
                            KBarriers::kBarrierBytes + SBarriers::kBarrierBytes>;

template <class Config>
class SharedMemory : public Exchange<Config> {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using HalfTile = typename Tiles<Config>::HalfTile;
  using PTile = typename Tiles<Config>::PTile;
  using RotaryTile = typename Tiles<Config>::RotaryTile;

 public:
  using Exchange<Config>::Exchange;

  __device__ QTile q() const { return QTile(this->base_); }
  __device__ KTile k(int stage) const { return KTile(this->base_ + QTile::kBytes).after(stage); }
  __device__ HalfTile v(int stage, int half) const {
    return HalfTile(k(stage).panel(half * HalfTile::kCount));
  }
  __device__ RotaryTile rotary(int stage) const {
    return RotaryTile(k(stage).panel(kRotaryPart * HalfTile::kCount));
  }
  __device__ PTile p(int stage) const { return PTile(rotary(stage).address); }

  __device__ KBarriers k_pipeline() const { return {this->own_barriers()}; }
  __device__ SBarriers s_pipeline() const {
    return {this->own_barriers() + KBarriers::kBarrierBytes};
  }

  // Each part of a stage is released by the four warps of one warpgroup: a half of V by the one that
  // multiplies with it, the rotary columns by the one that reads P there.
  __device__ void init_barriers() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      k_pipeline().init(stage, 1, kWarpgroupWarps);
      s_pipeline().init_full(stage, kWarpgroupWarps);
    }
    this->init_exchange_barriers();
  }
};

}  // namespace fa::sm90::mla
