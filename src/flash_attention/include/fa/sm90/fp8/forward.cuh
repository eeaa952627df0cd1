// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel for e4m3: warpgroup 0 produces with few registers, the others consume with many.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/fp8/consumer.cuh>
#include <fa/sm90/fp8/pages.cuh>
#include <fa/sm90/fp8/powers.cuh>
#include <fa/sm90/fp8/producer.cuh>
#include <fa/sm90/fp8/promotion.cuh>
#include <fa/sm90/fp8/query_operand.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90::fp8 {

template <class T, class Config>
concept ValuesSlot =
    requires(const typename T::Maps& maps, const SharedMemory<Config>& smem, ptx::Mbarrier full,
             const Accumulator<16, Config::kBC>& s, const Accumulator<16, Config::kDHead>& o,
             typename T::template Source<Config>& source,
             const attn::KeyRange<typename Config::Mask, Config::kBC>& visited, Nothing wait) {
      typename T::KeyOrder;
      { T::scores(s, 0, 0) } -> Same<Four>;
      { T::template outputs<Config::kDHead>(o, 0, 0) } -> Same<Four>;
      T::template write_sums<Config>(smem);
      T::template clear_tail<Config>(smem.v(0), visited, 0, wait);
      T::before_loads(maps);
      source.load_k(smem.k(0), full, 0);
      source.load_v(smem.v(0), full, 0);
    };

template <class T, class Config>
concept PagesSlot =
    requires(typename T::template Keys<Config>& keys, const SharedMemory<Config>& smem,
             ptx::Mbarrier full, const typename T::ValueRows& values) {
      { T::kByWarp } -> Same<const bool&>;
      { T::kArrivals } -> Same<const int&>;
      { T::template kBoxKeys<Config::kBC> } -> Same<const int&>;
      T::expect(full, 0);
      T::arrived();
      keys.load(smem.k(0), full, 0);
      { values.row(0) } -> Same<const char*>;
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
  static_assert(
      PowersSlot<typename Config::Powers, typename Config::Sums>,
      "Powers: kBias, Overflow with large(), weights<Sums>(group, s, offset, factor, sum, "
      "overflow)");
  static_assert(
      PromotionSlot<typename Config::Promotion>,
      "Promotion: kThreadBytes<Columns>, Copy<Columns>(smem) with begin(), rescale(stats), "
      "count(o), end(o)");
  static_assert(QueryOperandSlot<typename Config::QueryOperand, Config>,
                "QueryOperand: Operand<Tile, DHead> with begin(tile, row, release), issue(s, k), "
                "end(release)");
  static_assert(
      ValuesSlot<typename Config::Values, Config>,
      "Values: Maps, KeyOrder, Tile<DHead, SumRows, Keys>, scores(s, n, h), "
      "outputs<DHead>(o, d, h), write_sums<Config>(smem), clear_tail<Config>(tile, visited, k_len, "
      "wait), before_loads(maps), Source<Config> with load_k(to, full, block) and load_v");
  static_assert(
      PagesSlot<typename Config::Pages, Config>,
      "Pages: kByWarp, kArrivals, kBoxKeys<Keys>, expect(full, bytes), arrived(), Keys<Config> "
      "with load(to, full, block), ValueRows with row(key)");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: step(consumer, block)");
  return true;
}

template <class Config>
inline constexpr int kGivenRegisters =
    Config::Pages::kByWarp ? given_registers(Config::kConsumers) : 0;

template <class Config>
__device__ void forward(const typename Config::Values::Maps& maps, const Fp8KernelArgs& args,
                        const void* dynamic) {
  static_assert(check_slots<Config>());
  static_assert(Config::kSmemBytes == SharedMemory<Config>::kBytes, "shared memory of a CTA");
  static_assert(Config::kWarpgroupRows == kWarpgroupRows, "rows of a box of Q");
  static_assert(Config::kPanelColumns == Tiles<Config>::KTile::kRowBytes, "columns of a box");
  static_assert(Config::kBoxKeys == Config::Pages::template kBoxKeys<Config::kBC>, "keys of a box");
  check_smem_start(dynamic);
  const SharedMemory<Config> smem(kSmemStart);
  if (threadIdx.x == 0) smem.init_barriers();
  Config::Values::template write_sums<Config>(smem);
  __syncthreads();  // the barriers and the rows for sums are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters + Config::kConsumers * kGivenRegisters<Config>>();
    if (threadIdx.x < Producer<Config>::kThreads) Producer<Config>(smem, maps, args).run();
  } else {
    ptx::grow_to<Config::kConsumerRegisters - kGivenRegisters<Config>>();
    Consumer<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::fp8
