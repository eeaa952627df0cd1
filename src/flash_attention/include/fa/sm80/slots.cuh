// SPDX-License-Identifier: Apache-2.0
// The concept of every slot of this family: what a variant must provide.
#pragma once
#include <fa/attn/slots.cuh>
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80 {

namespace example {  // the smallest arguments that exercise a concept
struct Read {
  __device__ void operator()(int) const {}
};
struct Mma {
  __device__ void operator()(int, int) const {}
};
}  // namespace example

template <class T>
concept CacheSlot = requires(u32 smem, void* gmem, ptx::Chunk chunk) {
  T::load_async(smem, gmem);
  T::load_async_or_zero(smem, gmem, true);
  T::store(gmem, T::load(gmem));
  T::store(gmem, smem);
};

template <class T, class Cache>
concept CopySlot = requires(u32 smem, const void* gmem) {
  T::template chunk<Cache>(smem, gmem);
  T::template chunk_or_zero<Cache>(smem, gmem, true);
  T::commit();
  T::template wait<1>();
};

template <class T>
concept LayoutSlot = requires(int row, int chunk, u32 address) {
  T::place(row, chunk);
  T::advance(address, address);
};

template <class T>
concept FeedSlot = requires(example::Read read, int step) {
  T::template begin<2>(read);
  T::template before<2>(step, read);
};

template <class T>
concept QueryFeedSlot = FeedSlot<T> && requires(example::Read read) { T::template hold<2>(read); };

template <class T>
concept MmaOrderSlot = requires(example::Mma mma) { T::template run<2, 4>(mma); };

template <class T>
concept NormaliseSlot =
    requires(Accumulator<16, 16>& o, int i, float sum) { T::row(o, i, i, sum); };

template <class T>
concept TensorView = requires(const T& tensor, u32 smem, int row, int chunk) {
  tensor.row_bytes();
  tensor.has(row, chunk);
  tensor.load(smem, tensor.address(row), row, chunk);
};

template <class T, class Config>
concept BoundsSlot = requires(const typename T::template Scope<Config>& scope, int step,
                              Accumulator<16, Config::kBC>& s, Accumulator<16, Config::kDHead>& o,
                              attn::RowStats<16> stats) {
  scope.empty();
  scope.first_row();
  scope.num_steps();
  scope.hide(s, step, scope.key(step));
  scope.finish(o, stats, step);
  requires TensorView<decltype(scope.q())> && TensorView<decltype(scope.k())>;
  requires TensorView<decltype(scope.v())> && TensorView<decltype(scope.o())>;
};

template <class T>
concept KvOrderSlot = requires(int step) { T::block(step, step); };

template <class T>
concept RowStrideSlot = requires(i64 stride) { T::elements(stride); };

template <class T>
concept PanelsSlot = requires { T::template kChunks<128>; };

// Fails to compile at the first slot of `Config` whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::check_slots<Config>());
  static_assert(CacheSlot<typename Config::Cache>,
                "Cache: load_async, load_async_or_zero, load, store");
  static_assert(CopySlot<typename Config::Copy, typename Config::Cache>,
                "Copy: chunk<Cache>(smem, gmem), chunk_or_zero<Cache>, commit(), wait<Pending>()");
  static_assert(LayoutSlot<typename Config::Layout>,
                "Layout: place(row, chunk), advance(address, bytes)");
  static_assert(PanelsSlot<typename Config::Panels>, "Panels: kChunks<DHead>");
  static_assert(QueryFeedSlot<typename Config::QFeed>, "QFeed: hold, begin, before");
  static_assert(FeedSlot<typename Config::KFeed>, "KFeed: begin<Steps>(read), before<Steps>");
  static_assert(FeedSlot<typename Config::VFeed>, "VFeed: begin<Steps>(read), before<Steps>");
  static_assert(MmaOrderSlot<typename Config::MmaOrder>, "MmaOrder: run<Rows, Cols>(mma)");
  static_assert(NormaliseSlot<typename Config::Normalise>, "Normalise: row(o, i, h, sum)");
  static_assert(BoundsSlot<typename Config::Bounds, Config>,
                "Bounds: Scope<Config> of the rows and steps of a CTA");
  static_assert(KvOrderSlot<typename Config::KvOrder>, "KvOrder: block(step, num_steps)");
  static_assert(RowStrideSlot<typename Config::RowStride>, "RowStride: elements(from_args)");
  return true;
}

}  // namespace fa::sm80
