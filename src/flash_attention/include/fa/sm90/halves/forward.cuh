// SPDX-License-Identifier: Apache-2.0
// The roles of kernels whose two consumer warpgroups share rows: warpgroup 0 produces with few registers,
// the two others consume with many.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/register_pool.cuh>
#include <fa/sm90/clear.cuh>
#include <fa/sm90/halves/shared_memory.cuh>
#include <fa/sm90/smem_start.cuh>

namespace fa::sm90::halves {

template <class Config, class Memory, class Producer, class Consumer, class Maps>
__device__ void run(const Maps& maps, const ForwardKernelArgs& args, const void* dynamic) {
  Config::Splits::begin();
  check_smem_start(dynamic);
  const Memory smem(kSmemStart);
  if (threadIdx.x == 0) smem.init_barriers();
  if (Shape<Config>::kRows < kWarpgroupRows)  // rows of Q that no load fills
    clear_rows<(kHalves + 1) * kWarpgroupSize>(smem.q(), Shape<Config>::kRows, threadIdx.x);
  __syncthreads();  // the barriers are ready, the zeros are written
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      maps.prefetch();
      Producer(smem, maps, args).run();
    }
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    Consumer(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::halves
