// SPDX-License-Identifier: Apache-2.0
// Warp specialisation: warpgroup 0 produces with few registers, the others consume with many.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/consumer.cuh>
#include <fa/sm90/forward.cuh>
#include <fa/sm90/output.cuh>
#include <fa/sm90/producer.cuh>
#include <fa/sm90/products.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile_order.cuh>
#include <fa/sm90/verbs.cuh>

namespace fa::sm90 {

// Fails to compile at the first slot whose variant does not satisfy its concept: of a kernel with a producer.
template <class Config>
__device__ constexpr bool check_specialised_slots() {
  static_assert(check_slots<Config>());
  static_assert(
      PagesSlot<typename Config::Pages, Config>,
      "Pages: kBoxKeys<Keys>, kWarps<Config>, kArrivals<Config>, arrived(), kGrouped, kCopies, "
      "Producer<Config, Memory>");
  static_assert(
      attn::MaxScoreSlot<typename Config::MaxScore, ForwardKernelArgs>,
      "MaxScore: Of<Rows, Args, Stale>(args) with begin(head, used), change<Unseen>(s, change, "
      "hide), see(s), set_limits(block, most), limit(i, h, most), see_weights(p, block, most)");
  static_assert(DescaleSlot<typename Config::Descale>,
                "Descale: kPerTile, Factors with read(args, batch, kv_head), scaled(call), "
                "of_values()");
  static_assert(PingPongSlot<typename Config::PingPong, Config>,
                "PingPong: Order<Consumers>(warpgroup) with wait(), arrive(), finish()");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  static_assert(OutputSlot<typename Config::Output, Config>,
                "Output: kOwnBuffer, queries_read(consumer), store(consumer, warp, ends)");
  static_assert(QueriesSlot<typename Config::Queries, Config>, "Queries: expect(producer, tile)");
  static_assert(BiasSlot<typename Config::Bias, Config>,
                "Bias: Of<Config> with look(smem, stage), at(place), and was_read()");
  static_assert(FirstBlockSlot<typename Config::FirstBlock, Config>, "FirstBlock: run(consumer)");
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: run(consumer)");
  return true;
}

// Warp specialisation: warpgroup 0 produces with few registers, the others consume with many.
template <class Config>
inline constexpr bool kMovesRegisters = Config::kConsumerRegisters > 0;

template <class Config>
inline constexpr int kGivenRegisters =
    Config::TileOrder::kByWarp || Config::Pages::template kWarps<Config> > 1
        ? given_registers(Config::kConsumers, Config::Pages::kCopies)
        : 0;

// The first thread of the producer's warpgroup that does not load.
template <class Config>
inline constexpr int kFirstHelper = Config::Pages::template kWarps<Config> * kWarpSize;

// The first thread produces. `help(smem)` is what the other warps of its warpgroup do.
template <class Config, class Memory, class Help>
__device__ __forceinline__ void specialise(const TensorMaps& maps, const ForwardKernelArgs& args,
                                           Memory smem, Help help) {
  static_assert(check_specialised_slots<Config>());
  static_assert(ScheduledConsumer<Consumer<Config>>, "Consumer: the verbs of a schedule");
  static_assert(StoringConsumer<Consumer<Config>>, "Consumer: what Output needs");
  using Producing = typename Config::Pages::template Producer<Config, Memory>;
  static_assert(PrefetchingProducer<LeadingProducer<Config, Memory>>,
                "Producer: what Queries needs");
  static_assert(check_host_numbers<Config, Memory::kBytes>());
  Config::Splits::begin();
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    if constexpr (kMovesRegisters<Config>)
      ptx::shrink_to<Config::kProducerRegisters + Config::kConsumers * kGivenRegisters<Config>>();
    if (threadIdx.x < Producing::kThreads) Producing(smem, maps, args).run();
    if (threadIdx.x >= kFirstHelper<Config>) help(smem);
  } else {
    if constexpr (kMovesRegisters<Config>)
      ptx::grow_to<Config::kConsumerRegisters - kGivenRegisters<Config>>();
    Consumer<Config>(smem, maps, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90

namespace fa::sm90::roles {

struct Specialised {
  template <class Config>
  static __device__ __forceinline__ void run(const TensorMaps& maps, const ForwardKernelArgs& args,
                                             u32 base) {
    specialise<Config>(maps, args, SharedMemory<Config>(base), [](const SharedMemory<Config>&) {});
  }

  // How a consumer waits for the next V and releases it.
  template <class Config>
  static __device__ void wait_values(const SharedMemory<Config>& smem,
                                     const Ring<Config::kStages>& at, bool& /*is_there*/) {
    smem.wait_v(at);
  }
  template <class Config>
  static __device__ void release_values(const SharedMemory<Config>& smem,
                                        const Ring<Config::kStages>& at) {
    smem.v_pipeline().release(at);
  }
};

}  // namespace fa::sm90::roles
