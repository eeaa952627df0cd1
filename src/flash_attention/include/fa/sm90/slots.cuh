// SPDX-License-Identifier: Apache-2.0
// The contract of every slot of this family: what a variant must provide. Kernels without a producer
// bind fewer.
#pragma once
#include <fa/attn/lse.cuh>
#include <fa/attn/slots.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tensor_maps.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

namespace example {  // the smallest arguments that exercise a contract
struct Range {
  __device__ int first_block() const { return 0; }
  __device__ int end_block() const { return 0; }
};
struct KeyBlock {
  __device__ void release() {}
  __device__ void scores_again(Accumulator<16, 64>&) {}
};
struct Consumer {};
struct Producer {};
struct Warp {};
}  // namespace example

template <class T>
concept RowsSlot = requires(int row) {
  T::kGroup;
  T::position(row);
  T::head(row, row);
};

template <class T>
concept SplitsSlot = requires(const ForwardKernelArgs& args, example::Range range, int split) {
  T::kParts;
  T::begin();
  T::first_block(range, split, split, args);
  T::end_block(range, split, split, args);
};

template <class T, class Exponential, class DType>
concept RescaleSlot = requires(Accumulator<16, 64>& s, attn::RowStats<16>& stats,
                               attn::Shrink& shrink, example::KeyBlock keys) {
  T::template run<Exponential, DType>(attn::Masked{}, s, stats, shrink, 1.f, keys);
  T::template run<Exponential, DType>(attn::Open{}, s, stats, shrink, 1.f, keys);
};

template <class T, class Config>
concept CopySlot = requires(typename T::template Transfers<Config>& transfers,
                            typename Shape<Config>::QTile q_tile,
                            typename Shape<Config>::KVTile kv_tile, int row) {
  transfers.load_q(q_tile, row);
  transfers.load_k(kv_tile, row);
  transfers.load_v(kv_tile, row);
  transfers.load_nothing();
  transfers.wait_k();
  transfers.wait_v();
};

template <class T, class Config>
concept PagesSlot =
    requires(typename Shape<Config>::KVTile tile, const TensorMap& map, ptx::Mbarrier full,
             const attn::Sequence& sequence,
             const ForwardKernelArgs& args) { T::load(tile, map, full, 0, 0, 0, sequence, args); };

template <class T>
concept TurnsSlot = requires(const typename T::template Order<2>& order) {
  order.begin();
  order.end();
  order.finish();
};

template <class T, class Config>
concept TileOrderSlot = requires(typename T::template Walk<Config>& walk, Tile& tile) {
  walk.next(tile);
  walk.request();
  walk.finish();
};

template <class T>
concept OutputSlot =
    requires(example::Consumer& consumer, example::Warp warp, const attn::RowEnds& ends) {
      T::kOwnBuffer;
      T::queries_read(consumer);
      T::store(consumer, warp, ends);
    };

template <class T>
concept QueriesSlot = requires(const example::Producer& p, Tile tile) { T::expect(p, tile); };

template <class T>
concept FirstBlockSlot = requires(example::Consumer& consumer) { T::run(consumer); };

template <class T>
concept ScheduleSlot = requires(example::Consumer& consumer) { T::run(consumer); };

// Names the first slot of `Config` whose variant breaks its contract: those of every kernel, ...
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::check_slots<Config>());
  static_assert(RowsSlot<typename Config::Rows>, "Rows: kGroup, position(row), head(tile, row)");
  static_assert(SplitsSlot<typename Config::Splits>,
                "Splits: kParts, begin(), first_block(range, tile, split, args), end_block");
  static_assert(
      RescaleSlot<typename Config::Rescale, typename Config::Exponential, typename Config::DType>,
      "Rescale: run<Exponential, DType>(block, s, stats, shrink, factor, keys)");
  return true;
}

// ... of one without a producer, ...
template <class Config>
__device__ constexpr bool check_unified_slots() {
  static_assert(
      CopySlot<typename Config::Copy, Config>,
      "Copy: Transfers<Config> with load_q, load_k, load_v, load_nothing, wait_k, wait_v");
  return check_slots<Config>();
}

// ... and of one with.
template <class Config>
__device__ constexpr bool check_specialised_slots() {
  static_assert(PagesSlot<typename Config::Pages, Config>,
                "Pages: load(tile, map, full, kv_head, key, batch, sequence, args)");
  static_assert(TurnsSlot<typename Config::Turns>, "Turns: Order<Consumers>: begin, end, finish");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config> with next(tile), request(), finish()");
  static_assert(OutputSlot<typename Config::Output>,
                "Output: kOwnBuffer, queries_read(consumer), store(consumer, warp, ends)");
  static_assert(QueriesSlot<typename Config::Queries>, "Queries: expect(producer, tile)");
  static_assert(FirstBlockSlot<typename Config::FirstBlock>, "FirstBlock: run(consumer)");
  static_assert(ScheduleSlot<typename Config::Schedule>, "Schedule: run(consumer)");
  return check_slots<Config>();
}

}  // namespace fa::sm90
