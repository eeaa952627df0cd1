// SPDX-License-Identifier: Apache-2.0
// O and its tangent in one pass, on sm_90a: warpgroup 0 produces with few registers, the others consume with
// many.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/forward.cuh>
#include <fa/sm90/tangent/args.cuh>
#include <fa/sm90/tangent/consumer.cuh>
#include <fa/sm90/tangent/producer.cuh>
#include <fa/sm90/tangent/shared_memory.cuh>

namespace fa::sm90::tangent {

template <class Config>
__device__ constexpr bool check_host_numbers() {
  static_assert(Config::kSmemBytes == SharedMemory<Config>::kBytes, "shared memory of a CTA");
  static_assert(Config::kBR == Shape<Config>::kBR, "rows of a tile");
  static_assert(Config::kPanelColumns == Shape<Config>::QTile::kColumns, "columns of a box");
  return true;
}

template <class Config>
__device__ void forward(const TensorMaps& maps, const TangentKernelArgs& args,
                        const void* dynamic) {
  static_assert(sm90::check_slots<Config>());
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  static_assert(check_host_numbers<Config>());
  check_smem_start(dynamic);
  const SharedMemory<Config> smem(kSmemStart);
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      maps.prefetch();
      Producer<Config>(smem, maps, args).run();
    }
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    Consumer<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::tangent
