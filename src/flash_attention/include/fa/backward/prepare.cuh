// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: delta = rowsum(dO O) - dlse, the log-sum-exp to base 2, and dQ = 0, or the
// first turn at each block of it.
//
// P = exp2(s - lse_log2). It is zero for rows that see no key and for the rows that fill a block after
// the last query: their lse_log2 is +inf and their delta zero. Gradients of rows that belong to no sequence are cleared as well.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/backward/rows.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// Gradients of rows that belong to no sequence are zero: rows before the first and after the last packed
// sequence, and keys of a sequence that are not used. So is dQ of a sequence without a key. No other
// kernel stores them.

// A gradient of one head, whose rows several CTAs clear together.
template <class Config>
struct Cleared {
  const RowBlock<Config>& cta;
  void* const tensor;  // null if the gradient is not wanted
  const Strides& stride;
  const int head, columns;

  __device__ void rows(int batch, int first, int end) const {
    if (!tensor) return;
    char* const start =
        static_cast<char*>(tensor) + (batch * stride.batch + head * stride.head) * kElementBytes;
    const int chunks = columns / kChunkElements;
    for (int i = cta.rank * Config::kThreads + threadIdx.x; i < (end - first) * chunks;
         i += cta.ranks * Config::kThreads)
      ptx::st_global_16(
          start + (first + i / chunks) * stride.seq * kElementBytes + i % chunks * kChunkBytes, {});
  }
  // The rows around all packed sequences.
  __device__ void around(const int* cu_seqlens, int sequences, int total) const {
    if (cta.clears_before) rows(0, 0, cu_seqlens[0]);
    if (cta.clears_after) rows(0, cu_seqlens[sequences], total);
  }
};

template <class Config>
__device__ void clear_unused(const BackwardKernelArgs& args, const RowBlock<Config>& cta) {
  using Gradient = Cleared<Config>;
  if (args.cu_seqlens_q)
    Gradient{cta, args.dq, args.dq_stride, cta.head, args.d_qk}.around(args.cu_seqlens_q,
                                                                       args.batch, args.total_q);
  if (cta.head % args.heads_per_kv) return;
  const int kv_head = cta.head / args.heads_per_kv;
  const Gradient gradients[] = {{cta, args.dk, args.dk_stride, kv_head, args.d_qk},
                                {cta, args.dv, args.dv_stride, kv_head, args.d_v}};
  for (const Gradient& gradient : gradients) {
    if (args.cu_seqlens_k) gradient.around(args.cu_seqlens_k, args.batch, args.total_k);
    if (!args.seqused_k) continue;
    const attn::Sequence sequence = Config::Lengths::sequence(args, cta.batch);
    const int keys = args.cu_seqlens_k
                         ? args.cu_seqlens_k[cta.batch + 1] - args.cu_seqlens_k[cta.batch]
                         : args.seq_len_k;
    gradient.rows(sequence.k_batch, sequence.k_first + sequence.k_len, sequence.k_first + keys);
  }
}

// dQ of the rows of a CTA, if their sequence has no key.
template <class Config>
__device__ void clear_keyless(const Rows<Config>& rows) {
  const BackwardKernelArgs& args = rows.args;
  if (rows.sequence.k_len > 0 || !args.dq) return;
  const int chunks = args.d_qk / kChunkElements;
  for (int i = threadIdx.x; i < Config::kRows * chunks; i += Config::kThreads)
    if (rows.has(i / chunks))
      ptx::st_global_16(static_cast<char*>(args.dq) + rows.offset(args.dq_stride, i / chunks) +
                            i % chunks * kChunkBytes,
                        {});
}

template <class DType>
__device__ float dot(const ptx::Chunk& x, const ptx::Chunk& y) {
  const auto both = [](u32 a, u32 b) {
    return DType::low(a) * DType::low(b) + DType::high(a) * DType::high(b);
  };
  return both(x.x, y.x) + both(x.y, y.y) + both(x.z, y.z) + both(x.w, y.w);
}

// rowsum(dO O) of the rows of a CTA. A row has kRowThreads threads with kRowChunks chunks each, of which the
// first writes its sum. Loads have no condition, so that those of several rows are in flight together: rows after
// the end and columns without a value load others, which nobody uses. `meanwhile` runs under the first loads.
template <class Config, class Meanwhile>
__device__ void sum_rows(const Rows<Config>& rows, float (&sums)[Config::kRows],
                         Meanwhile meanwhile) {
  constexpr int kRows = Config::kThreads / Config::kRowThreads;
  constexpr int kRounds = (Config::kRows + kRows - 1) / kRows;
  constexpr int kChunks = Config::kRowChunks;
  constexpr int kMost = 8 / kChunks;
  constexpr int kTogether = kRounds < kMost ? kRounds : kMost;
  const BackwardKernelArgs& args = rows.args;
  const int lane = threadIdx.x % Config::kRowThreads;
  const int first = threadIdx.x / Config::kRowThreads;
  const int last_row = rows.sequence.q_len - rows.first - 1;
  const auto has = [&](int c) {
    return (lane + c * Config::kRowThreads) * kChunkElements < args.d_v;
  };
  const auto chunk = [&](const void* tensor, const Strides& stride, int row, int c) {
    const int column = has(c) ? lane + c * Config::kRowThreads : 0;
    return ptx::ld_global_16(static_cast<const char*>(tensor) +
                             rows.offset(stride, min(row, last_row)) + column * kChunkBytes);
  };
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kTogether) {
    ptx::Chunk o[kTogether][kChunks], d_o[kTogether][kChunks];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        o[i][c] = chunk(args.o, args.o_stride, first + (round + i) * kRows, c);
        d_o[i][c] = chunk(args.d_o, args.d_o_stride, first + (round + i) * kRows, c);
      }
    __syncwarp();  // ptxas moves no load behind this
    if (round == 0) meanwhile();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float sum = 0.f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        if (has(c)) sum += dot<typename Config::DType>(o[i][c], d_o[i][c]);
#pragma unroll
      for (int lanes = Config::kRowThreads / 2; lanes; lanes /= 2)
        sum += __shfl_xor_sync(~0u, sum, lanes);
      const int row = first + (round + i) * kRows;
      if (lane == 0 && row < Config::kRows) sums[row] = sum;
    }
  }
}

// The sums of dQ, or the turns at them.
template <class Config>
__device__ void clear_dq(const Rows<Config>& rows) {
  const BackwardKernelArgs& args = rows.args;
  char* const dq = reinterpret_cast<char*>(args.dq_sum + rows.stat_row * Config::kSumColumns);
#pragma unroll 8
  for (int chunk = threadIdx.x; chunk < Config::kRows * Config::kSumColumns / 4;
       chunk += Config::kThreads)
    ptx::st_global_16(dq + chunk * kChunkBytes, {});
  if (Config::kOrdersDq && threadIdx.x * attn::kSemaphoreRows < Config::kRows &&
      rows.first % attn::kSemaphoreRows == 0)
    args.dq_semaphore[rows.stat_row / attn::kSemaphoreRows + threadIdx.x] = 0;
}

template <class Config>
__device__ void prepare_rows(const Rows<Config>& rows) {
  __shared__ float sums[Config::kRows];
  const BackwardKernelArgs& args = rows.args;
  const int row = threadIdx.x;
  const bool has = row < Config::kRows && rows.has(row);
  const float lse = has ? args.lse[rows.lse_offset(row)] : -attn::kInfinity;
  const float dlse = has && args.dlse ? args.dlse[rows.lse_offset(row)] : 0.f;
  sum_rows<Config>(rows, sums, [&] { clear_dq<Config>(rows); });
  __syncthreads();  // all sums are written
  const bool sees = lse != -attn::kInfinity;
  if (row >= Config::kRows) return;
  args.lse_log2[rows.stat_row + row] =
      sees ? attn::lowered_if_large(lse * kLog2e) : attn::kInfinity;
  args.delta[rows.stat_row + row] = sees ? sums[row] - dlse : 0.f;
}

// The sums of dK and dV, if there is one of each that all splits of the heads add to. The CTAs share them.
template <class Config>
__device__ void clear_key_sums(const BackwardKernelArgs& args) {
  const i64 threads = static_cast<i64>(gridDim.x) * Config::kThreads;
  const i64 floats =
      static_cast<i64>(args.heads / args.heads_per_kv) * args.key_rows * Config::kKeySumColumns;
  for (i64 chunk = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
       chunk < floats / 4; chunk += threads) {
    ptx::st_global_16(reinterpret_cast<char*>(args.dk_sum) + chunk * kChunkBytes, {});
    ptx::st_global_16(reinterpret_cast<char*>(args.dv_sum) + chunk * kChunkBytes, {});
  }
}

template <class Config>
__device__ void prepare(const BackwardKernelArgs& args) {
  if (Config::kStartsNext) ptx::launch_dependents();
  if constexpr (Config::kKeySumColumns > 0) clear_key_sums<Config>(args);
  const RowBlock<Config> cta(args, blockIdx.x);
  const Rows<Config> rows(args, cta);
  if (!rows.empty()) prepare_rows<Config>(rows);
  if constexpr (Config::Lengths::kPerBatch) {
    if (!rows.empty()) clear_keyless<Config>(rows);
    clear_unused<Config>(args, cta);
  }
}

}  // namespace fa::backward
