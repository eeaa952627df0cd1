// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that belong to no sequence are zero: rows before the first and after the last packed
// sequence, and keys of a sequence that are not used. So is dQ of a sequence without a key. No other
// kernel stores them.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// A gradient of one head, whose rows the CTAs of a grid's first dimension clear together.
template <int Threads>
struct Cleared {
  void* const tensor;  // null if the gradient is not wanted
  const Strides& stride;
  const int head, columns;

  __device__ void rows(int batch, int first, int end) const {
    if (!tensor) return;
    char* const start =
        static_cast<char*>(tensor) + (batch * stride.batch + head * stride.head) * kElementBytes;
    const int chunks = columns / kChunkElements;
    for (int i = blockIdx.x * Threads + threadIdx.x; i < (end - first) * chunks;
         i += gridDim.x * Threads)
      ptx::st_global_16(
          start + (first + i / chunks) * stride.seq * kElementBytes + i % chunks * kChunkBytes, {});
  }
  // The rows around all packed sequences.
  __device__ void around(const int* cu_seqlens, int sequences, int total) const {
    if (blockIdx.z == 0) rows(0, 0, cu_seqlens[0]);
    if (blockIdx.z == gridDim.z - 1) rows(0, cu_seqlens[sequences], total);
  }
};

template <class Config>
__device__ void clear_unused(const BackwardKernelArgs& args) {
  using Gradient = Cleared<Config::kThreads>;
  const int head = blockIdx.y, batch = blockIdx.z;
  const attn::Sequence sequence = Config::Lengths::sequence(args, batch);
  const Gradient dq{args.dq, args.dq_stride, head, args.d_qk};
  if (args.cu_seqlens_q) dq.around(args.cu_seqlens_q, args.batch, args.total_q);
  if (sequence.k_len == 0)
    dq.rows(sequence.q_batch, sequence.q_first, sequence.q_first + sequence.q_len);
  if (head % args.heads_per_kv) return;
  const int kv_head = head / args.heads_per_kv;
  const Gradient gradients[] = {{args.dk, args.dk_stride, kv_head, args.d_qk},
                                {args.dv, args.dv_stride, kv_head, args.d_v}};
  const int keys =
      args.cu_seqlens_k ? args.cu_seqlens_k[batch + 1] - args.cu_seqlens_k[batch] : args.seq_len_k;
  for (const Gradient& gradient : gradients) {
    gradient.rows(sequence.k_batch, sequence.k_first + sequence.k_len, sequence.k_first + keys);
    if (args.cu_seqlens_k) gradient.around(args.cu_seqlens_k, args.batch, args.total_k);
  }
}

}  // namespace fa::backward
