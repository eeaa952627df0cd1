// SPDX-License-Identifier: Apache-2.0
// The gradient of a head's sink: -sum over its rows of exp(sink - lse) delta. A CTA adds up one head, in
// an order that is always the same.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/ptx/math.cuh>

namespace fa::backward {

template <class Config>
__device__ void sink_gradient(const BackwardKernelArgs& args) {
  __shared__ float warps[Config::kThreads / kWarpSize];
  const int head = blockIdx.x;
  const float sink = args.sinks[head] * kLog2e;
  float sum = 0.f;
  for (int batch = 0; batch < args.batch; ++batch) {
    const i64 first = static_cast<i64>(head) * args.stat_rows + attn::first_stat_row(args, batch);
    const int count = Config::Lengths::q_len(args, batch);
    for (int row = threadIdx.x; row < count; row += Config::kThreads)
      sum -=
          ptx::exp2(ptx::min_nan(sink - args.lse_log2[first + row], 0.f)) * args.delta[first + row];
  }
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (lane_id() == 0) warps[warp_id()] = sum;
  __syncthreads();  // the sums of all warps are stored
  if (threadIdx.x > 0) return;
  float total = 0.f;
  for (const float each : warps) total += each;
  args.dsinks[head] = total;
}

}  // namespace fa::backward
