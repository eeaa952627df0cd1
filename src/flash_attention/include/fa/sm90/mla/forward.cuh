// SPDX-License-Identifier: Apache-2.0
// MLA decoding on sm_90a: one head of K, whose first columns are V. Warpgroup 0 produces with few registers,
// the two others consume with many.
#pragma once
#include <fa/ptx/register_pool.cuh>
#include <fa/sm90/mla/consumer.cuh>
#include <fa/sm90/mla/producer.cuh>
#include <fa/sm90/mla/slots.cuh>

namespace fa::sm90::mla {

template <class Config>
__device__ void forward(const TensorMaps& maps, const ForwardKernelArgs& args,
                        const void* dynamic) {
  static_assert(check_slots<Config>());
  static_assert(check_host_numbers<Config>());
  Config::Splits::begin();
  const SharedMemory<Config> smem(ptx::smem_address(dynamic));
  if (threadIdx.x == 0) smem.init_barriers();
  if (Shape<Config>::kRows < kWarpgroupRows)  // rows of Q that no load fills
    clear_rows<(kHalves + 1) * kWarpgroupSize>(smem.q(), Shape<Config>::kRows, threadIdx.x);
  __syncthreads();  // the barriers are ready, the zeros are written
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<Config>(smem, maps, args).run();
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    Consumer<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::mla
