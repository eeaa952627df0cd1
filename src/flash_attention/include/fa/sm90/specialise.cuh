// SPDX-License-Identifier: Apache-2.0
// Warp specialisation: warpgroup 0 produces with few registers, the others consume with many.
#pragma once
#include <fa/ptx/register_pool.cuh>
#include <fa/sm90/consumer.cuh>
#include <fa/sm90/host_numbers.cuh>
#include <fa/sm90/producer.cuh>
#include <fa/sm90/slots.cuh>
#include <fa/sm90/verbs.cuh>

namespace fa::sm90 {

template <class Config>
inline constexpr bool kMovesRegisters = Config::kConsumerRegisters > 0;

// The first thread produces. `help(smem)` is what the other warps of its warpgroup do.
template <class Config, class Memory, class Help>
__device__ void specialise(const TensorMaps& maps, const ForwardKernelArgs& args, Memory smem,
                           Help help) {
  static_assert(check_specialised_slots<Config>());
  static_assert(ScheduledConsumer<Consumer<Config>>, "Consumer: the verbs of a schedule");
  static_assert(StoringConsumer<Consumer<Config>>, "Consumer: what Output needs");
  static_assert(PrefetchingProducer<Producer<Config, Memory>>, "Producer: what Queries needs");
  static_assert(check_host_numbers<Config, Memory::kBytes>());
  Config::Splits::begin();
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    if constexpr (kMovesRegisters<Config>) ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<Config, Memory>(smem, maps, args).run();
    if (threadIdx.x >= kWarpSize) help(smem);
  } else {
    if constexpr (kMovesRegisters<Config>) ptx::grow_to<Config::kConsumerRegisters>();
    Consumer<Config>(smem, maps, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90
