// SPDX-License-Identifier: Apache-2.0
// The concept of every slot of this family: what a variant must provide. Kernels without a producer
// bind fewer slots.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/attn/lse.cuh>
#include <fa/attn/slots.cuh>
#include <fa/ptx/mbarrier.cuh>
#include <fa/sm90/tensor_maps.cuh>
#include <fa/sm90/tile_order_slot.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

template <class Config>
class SharedMemory;
template <class Config, class Memory>
class Producer;
template <class Config>
class Consumer;

template <class T>
concept RowsSlot = requires(int row) {
  { T::kGroup } -> Same<const int&>;
  { T::position(row) } -> Same<int>;
  { T::head(row, row) } -> Same<int>;
};

// Splits with partial results say where these are stored.
template <class T>
concept PartsOfSplits = requires(const ForwardKernelArgs& args, int tile, int split) {
  { T::part(tile, split, args) } -> Same<int>;
  { T::first_split(tile, args) } -> Same<int>;
  { T::end_split(tile, args) } -> Same<int>;
};

template <class T, class Range>
concept SplitsSlot =
    requires(const ForwardKernelArgs& args, const Range& range, int tile, int split) {
      { T::kParts } -> Same<const bool&>;
      T::begin();
      { T::first_block(range, tile, split, args) } -> Same<int>;
      { T::end_block(range, tile, split, args) } -> Same<int>;
    } && (!T::kParts || PartsOfSplits<T>);

// guess: S becomes P with the old maxima, if the variant supports that; `scores_again(s)` computes S
// again. run: S becomes P if guess did not do it. Both set in `stats` whether the maxima grew.
template <int Keys>
struct ScoresAgain {
  __device__ void operator()(Accumulator<kWarpRows, Keys>&) const {}
};

template <class T, class Config, class Block>
concept RescalesBlock =
    requires(Block block, Accumulator<kWarpRows, Config::kBC>& s, attn::RowStats<kWarpRows>& stats,
             attn::Factor& factor, ScoresAgain<Config::kBC> again) {
      T::template guess<typename Config::Exponential, typename Config::DType>(block, s, stats,
                                                                              factor, again);
      T::template run<typename Config::Exponential>(block, s, stats, factor);
    };

template <class T, class Config>
concept RescaleSlot =
    RescalesBlock<T, Config, attn::Masked> && RescalesBlock<T, Config, attn::FirstMasked> &&
    RescalesBlock<T, Config, attn::Open>;

template <class T>
concept DescaleSlot = requires(typename T::Factors& factors, const ForwardKernelArgs& args) {
  { T::kPerTile } -> Same<const bool&>;
  factors.read(args, 0, 0);
  factors.scaled(args);
  { factors.of_values() } -> Same<float>;
};

template <class T, class Config>
concept CopySlot = requires(typename T::template Transfers<Config>& transfers,
                            const WarpOutput<Config>& warp, typename Shape<Config>::QTile q_tile,
                            typename Shape<Config>::KVTile kv_tile, int row) {
  transfers.load_q(q_tile, row);
  transfers.load_k(kv_tile, row);
  transfers.load_v(kv_tile, row);
  transfers.load_nothing();
  transfers.wait_k();
  transfers.wait_v();
  transfers.store(warp, q_tile);
};

template <class T, class Config>
concept PagesSlot =
    requires(typename Shape<Config>::KVTile tile, const TensorMap& map, ptx::Mbarrier full,
             const attn::Sequence& sequence, const ForwardKernelArgs& args) {
      { T::template kBoxKeys<Config::kBC> } -> Same<const int&>;
      T::load(tile, map, full, 0, 0, 0, sequence, args);
    };

template <class T, class Config>
concept TurnsSlot =
    requires(const typename T::template Order<Config::kConsumers>& order, int warpgroup) {
      { typename T::template Order<Config::kConsumers>(warpgroup) };
      order.begin();
      order.end();
      order.finish();
    };

template <class T, class Config>
concept OutputSlot = requires(Consumer<Config>& consumer, const WarpOutput<Config>& warp,
                              const attn::RowEnds& ends) {
  { T::kOwnBuffer } -> Same<const bool&>;
  T::queries_read(consumer);
  T::store(consumer, warp, ends);
};

template <class T, class Config>
concept QueriesSlot = requires(const Producer<Config, SharedMemory<Config>>& producer, Tile tile) {
  T::expect(producer, tile);
};

template <class T, class Config>
concept FirstBlockSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

template <class T, class Config>
concept ScheduleSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

// Fails to compile at the first slot whose variant does not satisfy its concept: of every kernel, ...
template <class Config>
__device__ constexpr bool check_slots() {
  using Range = attn::KeyRange<typename Config::Mask, Config::kBC>;
  static_assert(attn::check_slots<Config>());
  static_assert(RowsSlot<typename Config::Rows>, "Rows: kGroup, position(row), head(tile, row)");
  static_assert(SplitsSlot<typename Config::Splits, Range>,
                "Splits: kParts, begin(), first_block(range, tile, split, args), end_block; with "
                "kParts part(tile, split, args), first_split(tile, args), end_split");
  static_assert(RescaleSlot<typename Config::Rescale, Config>,
                "Rescale: guess<Exponential, DType>(block, s, stats, factor, "
                "scores_again), run<Exponential>(block, s, stats, factor)");
  return true;
}

// ... of one without a producer, ...
template <class Config>
__device__ constexpr bool check_unified_slots() {
  static_assert(check_slots<Config>());
  static_assert(
      CopySlot<typename Config::Copy, Config>,
      "Copy: Transfers<Config> with load_q, load_k, load_v, load_nothing, wait_k, wait_v, store");
  return true;
}

// ... and of one with.
template <class Config>
__device__ constexpr bool check_specialised_slots() {
  static_assert(check_slots<Config>());
  static_assert(
      PagesSlot<typename Config::Pages, Config>,
      "Pages: kBoxKeys<Keys>, load(tile, map, full, kv_head, key, batch, sequence, args)");
  static_assert(DescaleSlot<typename Config::Descale>,
                "Descale: kPerTile, Factors with read(args, batch, kv_head), scaled(call), "
                "of_values()");
  static_assert(TurnsSlot<typename Config::Turns, Config>,
                "Turns: Order<Consumers>(warpgroup) with begin(), end(), finish()");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  static_assert(OutputSlot<typename Config::Output, Config>,
                "Output: kOwnBuffer, queries_read(consumer), store(consumer, warp, ends)");
  static_assert(QueriesSlot<typename Config::Queries, Config>, "Queries: expect(producer, tile)");
  static_assert(FirstBlockSlot<typename Config::FirstBlock, Config>, "FirstBlock: run(consumer)");
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: run(consumer)");
  return true;
}

}  // namespace fa::sm90
