// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA: the tiles, then what the two warpgroups exchange.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>

namespace fa::sm90::wide {

// The tensor maps of q, k and v. O is stored from registers.
struct TensorMaps {
  const TensorMap &q, &k, &v;

  __device__ void prefetch() const {
    ptx::tma_prefetch_map(q);
    ptx::tma_prefetch_map(k);
    ptx::tma_prefetch_map(v);
  }
};

// The shared tiles of wide heads: Q, one block of K, one of V, and P of both warpgroups. The columns of K
// are loaded and released in parts, those of V in halves.
using split_v::kHalves, split_v::kStages;

template <class Config>
struct Tiles {
  static constexpr int kPartColumns = 128;
  static constexpr int kColumnParts = (Config::kDHead + kPartColumns - 1) / kPartColumns;
  static constexpr int kLastColumns = Config::kDHead - (kColumnParts - 1) * kPartColumns;
  static constexpr int kHalfColumns = Config::kDV / kHalves;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KTile;
  using PartTile = SharedTile<kPartColumns, Config::kBC>;
  using LastTile = SharedTile<kLastColumns, Config::kBC>;
  using HalfTile = SharedTile<kHalfColumns, Config::kBC>;
  using PTile = SharedTile<Config::kBC, kWarpgroupRows>;

  static_assert(LastTile::kPanelBytes == KTile::kPanelBytes &&
                    HalfTile::kPanelBytes == KTile::kPanelBytes,
                "a part of K and a half of V are whole panels");
};

// There is one buffer of K, but its barriers alternate, so that a warpgroup, which computes every other block's
// scores, misses no phase of its own.
template <class Config>
using KBarriers = PipelineBarriers<kStages, Tiles<Config>::kColumnParts>;
using VBarriers = PipelineBarriers<kHalves>;

template <class Config>
using Exchange =
    split_v::ExchangeMemory<Config,
                            Tiles<Config>::QTile::kBytes + Tiles<Config>::KTile::kBytes +
                                kHalves * Tiles<Config>::HalfTile::kBytes +
                                kStages * Tiles<Config>::PTile::kBytes,
                            KBarriers<Config>::kBarrierBytes + VBarriers::kBarrierBytes>;

template <class Config>
class SharedMemory : public Exchange<Config> {
  using QTile = typename Tiles<Config>::QTile;
  using KTile = typename Tiles<Config>::KTile;
  using HalfTile = typename Tiles<Config>::HalfTile;
  using PTile = typename Tiles<Config>::PTile;
  static constexpr int kColumnParts = Tiles<Config>::kColumnParts;

 public:
  using Exchange<Config>::Exchange;

  __device__ QTile q() const { return QTile(this->base_); }
  __device__ KTile k() const { return KTile(this->base_ + QTile::kBytes); }
  // The first columns of part `n` of K.
  __device__ u32 k_part(int n) const { return k().panel(n * Tiles<Config>::PartTile::kCount); }
  __device__ HalfTile v(int half) const {
    return HalfTile(k().address + KTile::kBytes).after(half);
  }
  __device__ PTile p(int stage) const { return PTile(v(kHalves).address).after(stage); }

  __device__ KBarriers<Config> k_pipeline() const { return {this->own_barriers()}; }
  __device__ VBarriers v_pipeline() const {
    return {this->own_barriers() + KBarriers<Config>::kBarrierBytes};
  }

  // K is released by the warpgroup that computes its scores, a half of V by the one that multiplies with it.
  __device__ void init_barriers() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) k_pipeline().init(stage, 1, kWarpgroupWarps);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) v_pipeline().init(half, 1, kWarpgroupWarps);
    this->init_exchange_barriers();
  }
};

}  // namespace fa::sm90::wide
