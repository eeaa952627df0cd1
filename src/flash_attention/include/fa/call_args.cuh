// SPDX-License-Identifier: Apache-2.0
// The arguments that the kernels of all passes have: what the caller asked. Lengths are those of
// the longest sequence; lse is [batch, heads, seq_len_q].
#pragma once
#include <fa/core.cuh>

namespace fa {

// Element strides of a [batch, seq, heads, d_head] tensor; d_head is contiguous.
struct Strides {
  i64 batch, seq, head;
};

struct CallArgs {
  const float* sinks;  // [heads], a logit that is added to the softmax denominator; null if none
  const int* cu_seqlens_q;  // [batch + 1], where packed sequences start; null if not packed
  const int* cu_seqlens_k;
  const int* seqused_k;  // [batch], used keys of a sequence; null: all
  i64 lse_batch_stride, lse_head_stride;
  int batch, heads, heads_per_kv;
  int seq_len_q, seq_len_k;
  int d_qk, d_v;                  // columns of Q and K, of V and O
  int window_left, window_right;  // keys that a query sees before and after its own
  float softmax_scale, softcap;
};

}  // namespace fa
