// SPDX-License-Identifier: Apache-2.0
// The parts of a row, each of a chunk of the keys, become one: weights are the exponentials of their
// log-sum-exps. One warp a row.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/kernel_args.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::attn {

template <class DType>
__device__ void combine(const ForwardKernelArgs& args) {
  constexpr float kLog2e = 1.4426950408889634f;
  const i64 rows = static_cast<i64>(args.batch) * args.heads * args.seq_len_q;
  const i64 row = blockIdx.x * static_cast<i64>(blockDim.x / kWarpSize) + warp_id();
  if (row >= rows) return;
  float max = -kInfinity, sum = 0.f;
  for (int split = 0; split < args.num_splits; ++split)
    max = fmaxf(max, args.lse_parts[split * rows + row]);
  const float offset = max == -kInfinity ? 0.f : max;
  for (int split = 0; split < args.num_splits; ++split)
    sum += ptx::exp2((args.lse_parts[split * rows + row] - offset) * kLog2e);
  const int position = row % args.seq_len_q, head = row / args.seq_len_q % args.heads;
  const i64 batch = row / args.seq_len_q / args.heads;
  char* const to =
      static_cast<char*>(args.o) +
      (batch * args.o_stride.batch + head * args.o_stride.head + position * args.o_stride.seq) *
          kElementBytes;
  const float inverse = sum == 0.f ? 0.f : 1.f / sum;
  for (int column = 2 * lane_id(); column < args.d_v; column += 2 * kWarpSize) {
    float x = 0.f, y = 0.f;
    for (int split = 0; split < args.num_splits; ++split) {
      const i64 part = split * rows + row;
      const float weight = ptx::exp2((args.lse_parts[part] - offset) * kLog2e) * inverse;
      const float2 pair = *reinterpret_cast<const float2*>(args.o_parts + part * args.d_v + column);
      x += weight * pair.x;
      y += weight * pair.y;
    }
    ptx::st_global_4(to + column * kElementBytes, DType::pack(x, y));
  }
  if (args.lse && lane_id() == 0)
    args.lse[batch * args.lse_batch_stride + head * args.lse_head_stride + position] =
        sum == 0.f ? -kInfinity : max + ptx::log(sum);
}

}  // namespace fa::attn
