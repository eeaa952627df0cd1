// SPDX-License-Identifier: Apache-2.0
// Sequences differ in length. Packed tensors hold the sequences one after the other, without a batch
// dimension; cu_seqlens says where each one starts and where the last one ends. seqused_k may reduce
// the number of keys of a sequence.
#pragma once
#include <fa/attn/sequence.cuh>

namespace fa::attn::lengths {

struct PerBatch {
  static constexpr bool kPerBatch = true;
  static constexpr bool kPackedQueries = false;

  static __device__ int q_len(const CallArgs& args, int batch) {
    if (!args.cu_seqlens_q) return args.seq_len_q;
    return args.cu_seqlens_q[batch + 1] - args.cu_seqlens_q[batch];
  }
  static __device__ Sequence sequence(const CallArgs& args, int batch) {
    Sequence sequence = {q_len(args, batch), args.seq_len_k, 0, 0, batch, batch};
    if (args.cu_seqlens_q) {
      sequence.q_first = args.cu_seqlens_q[batch];
      sequence.q_batch = 0;
    }
    if (args.cu_seqlens_k) {
      sequence.k_first = args.cu_seqlens_k[batch];
      sequence.k_len = args.cu_seqlens_k[batch + 1] - sequence.k_first;
      sequence.k_batch = 0;
    }
    if (args.seqused_k) sequence.k_len = args.seqused_k[batch];
    return sequence;
  }
};

}  // namespace fa::attn::lengths
