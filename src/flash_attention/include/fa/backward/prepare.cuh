// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: delta = rowsum(dO O) - dlse, the log-sum-exp to base 2, and dQ = 0.
//
// P = exp2(s - lse_log2). It is zero for rows that see no key and for the rows that fill a block after
// the last query: their lse_log2 is +inf and their delta zero. Gradients of rows that belong to no sequence are cleared as well.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/backward/clear.cuh>
#include <fa/backward/rows.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

template <class DType>
__device__ float dot(u32 x, u32 y) {
  return DType::low(x) * DType::low(y) + DType::high(x) * DType::high(y);
}

template <class Config>
__device__ void prepare(const BackwardKernelArgs& args) {
  using DType = typename Config::DType;
  constexpr float kLog2e = 1.4426950408889634f;
  if (Config::Lengths::kPerBatch) clear_unused<Config>(args);
  const Rows<Config> rows(args);
  if (rows.empty()) return;
  char* const dq = reinterpret_cast<char*>(args.dq_sum + rows.stat_row * Config::kSumColumns);
#pragma unroll 8
  for (int chunk = threadIdx.x; chunk < attn::kStatBlock * Config::kSumColumns / 4;
       chunk += Config::kThreads)
    ptx::st_global_16(dq + chunk * kChunkBytes, {});
  const int lane = threadIdx.x % Config::kRowThreads;
#pragma unroll 4
  for (int row = threadIdx.x / Config::kRowThreads; row < attn::kStatBlock;
       row += Config::kThreads / Config::kRowThreads) {
    float sum = 0.f;
    if (rows.has(row) && lane * kChunkElements < args.d_v) {
      const ptx::Chunk o = ptx::ld_global_16(static_cast<const char*>(args.o) +
                                             rows.offset(args.o_stride, row) + lane * kChunkBytes);
      const ptx::Chunk d_o =
          ptx::ld_global_16(static_cast<const char*>(args.d_o) + rows.offset(args.d_o_stride, row) +
                            lane * kChunkBytes);
      sum = dot<DType>(o.x, d_o.x) + dot<DType>(o.y, d_o.y) + dot<DType>(o.z, d_o.z) +
            dot<DType>(o.w, d_o.w);
    }
#pragma unroll
    for (int lanes = Config::kRowThreads / 2; lanes; lanes /= 2)
      sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane == 0) {
      const float lse = rows.has(row) ? args.lse[rows.lse_offset(row)] : -attn::kInfinity;
      const bool sees = lse != -attn::kInfinity;
      const float dlse = sees && args.dlse ? args.dlse[rows.lse_offset(row)] : 0.f;
      args.lse_log2[rows.stat_row + row] = sees ? lse * kLog2e : attn::kInfinity;
      args.delta[rows.stat_row + row] = sees ? sum - dlse : 0.f;
    }
  }
}

}  // namespace fa::backward
