// SPDX-License-Identifier: Apache-2.0
// The concept of every slot of the FP8 kernels: what a variant must provide.
#pragma once
#include <fa/attn/lse.cuh>
#include <fa/attn/online.cuh>
#include <fa/attn/slots.cuh>
#include <fa/sm90/fp8/four.cuh>
#include <fa/sm90/fp8/shared_memory.cuh>
#include <fa/sm90/tile_order_slot.cuh>

namespace fa::sm90::fp8 {

template <class Config>
class Consumer;

template <class T>
concept SumsSlot = requires(Accumulator<16, 16>& o, attn::RowStats<16>& stats, float x, char* to) {
  { T::kRows } -> Same<const int&>;
  T::store_rows(to);
  T::template write_rows<128>(0u);
  T::add(x, x, x, x, x);
  T::take(o, stats, x);
};

template <class T, class Sums>
concept PowersSlot = requires(const float (&s)[4], float x, typename T::Watch& watch) {
  { T::kBias } -> Same<const float&>;
  { T::template weights<Sums>(0, s, x, x, x, watch) } -> Same<u32>;
  { watch.large() } -> Same<bool>;
};

template <class T>
concept PromotionSlot = requires(typename T::template Copy<16>& copy, Accumulator<16, 16>& o,
                                 const attn::RowStats<16>& stats, u32 smem) {
  { T::template kThreadBytes<16> } -> Same<const int&>;
  { typename T::template Copy<16>(smem) };
  copy.begin();
  copy.count(o, stats, 0.f);
  copy.end(o);
};

struct Nothing {
  __device__ void operator()() const {}
};

template <class T, class Config>
concept QueryOperandSlot =
    requires(typename T::template Operand<typename Tiles<Config>::QTile, Config::kDHead>& operand,
             typename Tiles<Config>::QTile tile, typename Tiles<Config>::KTile::RowOperand k,
             Accumulator<16, Config::kBC>& s, Nothing release) {
      operand.begin(tile, 0, release);
      operand.issue(s, k);
      operand.end(release);
    };

template <class T, class Config>
concept ValuesSlot =
    requires(const typename T::Maps& maps, const SharedMemory<Config>& smem, ptx::Mbarrier full,
             const Accumulator<16, Config::kBC>& s, const Accumulator<16, Config::kDHead>& o,
             const typename T::template Source<Config>& source) {
      typename T::KeyOrder;
      { T::scores(s, 0, 0) } -> Same<Four>;
      { T::template outputs<Config::kDHead>(o, 0, 0) } -> Same<Four>;
      T::template write_sums<Config>(smem);
      T::before_loads(maps);
      source.load_k(smem.k(0), full, 0);
      source.load_v(smem.v(0), full, 0);
    };

template <class T, class Config>
concept ScheduleSlot = requires(Consumer<Config>& consumer) {
  T::step(consumer, attn::Masked{});
  T::step(consumer, attn::Open{});
};

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::check_slots<Config>());
  static_assert(SumsSlot<typename Config::Sums>,
                "Sums: kRows, store_rows(lane), write_rows<RowBytes>(smem), add(sum, x, y, z, w), "
                "take(o, stats, zero)");
  static_assert(PowersSlot<typename Config::Powers, typename Config::Sums>,
                "Powers: kBias, Watch with large(), weights<Sums>(group, s, offset, factor, sum, "
                "watch)");
  static_assert(PromotionSlot<typename Config::Promotion>,
                "Promotion: kThreadBytes<Columns>, Copy<Columns>(smem) with begin(), count(o, "
                "stats, zero), end(o)");
  static_assert(QueryOperandSlot<typename Config::QueryOperand, Config>,
                "QueryOperand: Operand<Tile, DHead> with begin(tile, row, release), issue(s, k), "
                "end(release)");
  static_assert(ValuesSlot<typename Config::Values, Config>,
                "Values: Maps, KeyOrder, Tile<DHead, SumRows, Keys>, scores(s, n, h), "
                "outputs<DHead>(o, d, h), write_sums<Config>(smem), before_loads(maps), "
                "Source<Config> with load_k(to, full, block) and load_v");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: step(consumer, block)");
  return true;
}

}  // namespace fa::sm90::fp8
