// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel for e4m3: warpgroup 0 produces with few registers, the others consume with many.
#pragma once
#include <fa/ptx/register_pool.cuh>
#include <fa/sm90/fp8/consumer.cuh>
#include <fa/sm90/fp8/producer.cuh>
#include <fa/sm90/fp8/slots.cuh>

namespace fa::sm90::fp8 {

template <class Config>
__device__ void forward(const typename Config::Values::Maps& maps, const Fp8KernelArgs& args,
                        const void* dynamic) {
  static_assert(check_slots<Config>());
  static_assert(Config::kSmemBytes == SharedMemory<Config>::kBytes, "shared memory of a CTA");
  static_assert(Config::kWarpgroupRows == kWarpgroupRows, "rows of a box of Q");
  static_assert(Config::kPanelColumns == Tiles<Config>::KTile::kRowBytes, "columns of a box");
  const SharedMemory<Config> smem(ptx::smem_address(dynamic));
  if (threadIdx.x == 0) smem.init_barriers();
  Config::Values::template write_sums<Config>(smem);
  __syncthreads();  // the barriers and the rows for sums are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<Config>(smem, maps, args).run();
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    Consumer<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::fp8
