// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that belong to no sequence are zero: rows before the first and after the last packed
// sequence, and keys of a sequence that are not used. So is dQ of a sequence without a key. No other
// kernel stores them.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/backward/rows.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// A gradient of one head, whose rows the CTAs of a sequence and a head clear together.
template <int Threads>
struct Cleared {
  const RowBlock& cta;
  void* const tensor;  // null if the gradient is not wanted
  const Strides& stride;
  const int head, columns;

  __device__ void rows(int batch, int first, int end) const {
    if (!tensor) return;
    char* const start =
        static_cast<char*>(tensor) + (batch * stride.batch + head * stride.head) * kElementBytes;
    const int chunks = columns / kChunkElements;
    for (int i = cta.block * Threads + threadIdx.x; i < (end - first) * chunks;
         i += cta.blocks * Threads)
      ptx::st_global_16(
          start + (first + i / chunks) * stride.seq * kElementBytes + i % chunks * kChunkBytes, {});
  }
  // The rows around all packed sequences.
  __device__ void around(const int* cu_seqlens, int sequences, int total) const {
    if (cta.batch == 0) rows(0, 0, cu_seqlens[0]);
    if (cta.batch == sequences - 1) rows(0, cu_seqlens[sequences], total);
  }
};

template <class Config>
__device__ void clear_unused(const BackwardKernelArgs& args) {
  using Gradient = Cleared<Config::kThreads>;
  const RowBlock cta(args);
  const int head = cta.head, batch = cta.batch;
  const attn::Sequence sequence = Config::Lengths::sequence(args, batch);
  const Gradient dq{cta, args.dq, args.dq_stride, head, args.d_qk};
  if (args.cu_seqlens_q) dq.around(args.cu_seqlens_q, args.batch, args.total_q);
  if (sequence.k_len == 0)
    dq.rows(sequence.q_batch, sequence.q_first, sequence.q_first + sequence.q_len);
  if (head % args.heads_per_kv) return;
  const int kv_head = head / args.heads_per_kv;
  const Gradient gradients[] = {{cta, args.dk, args.dk_stride, kv_head, args.d_qk},
                                {cta, args.dv, args.dv_stride, kv_head, args.d_v}};
  const int keys =
      args.cu_seqlens_k ? args.cu_seqlens_k[batch + 1] - args.cu_seqlens_k[batch] : args.seq_len_k;
  for (const Gradient& gradient : gradients) {
    gradient.rows(sequence.k_batch, sequence.k_first + sequence.k_len, sequence.k_first + keys);
    if (args.cu_seqlens_k) gradient.around(args.cu_seqlens_k, args.batch, args.total_k);
  }
}

}  // namespace fa::backward
