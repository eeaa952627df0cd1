// SPDX-License-Identifier: Apache-2.0
// Basic types: integers, thread coordinates, the accumulator tile, the
// arguments that all passes have.
//
// Index letters used in every header: i 16-row fragment, j 8-column fragment, h upper or lower
// eight rows of a fragment, d 16-wide step along the head dimension, n 16-wide step along the keys.
#pragma once

namespace fa {

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

inline constexpr int kWarpSize = 32;
inline constexpr int kElementBytes = 2;   // fp16 and bf16
inline constexpr int kChunkElements = 8;  // a chunk is 16 bytes: one async copy, one ldmatrix row
inline constexpr int kChunkBytes = 16;
inline constexpr float kLog2e = 1.4426950408889634f;  // exponentials are to the base 2

__device__ inline int lane_id() { return threadIdx.x % kWarpSize; }
__device__ inline int warp_id() { return threadIdx.x / kWarpSize; }

// A warp's fp32 accumulator of Rows x Cols. Lane l holds in v[i][j][e] the element
//   row = 16 i + l / 4 + 8 (e / 2),  col = 8 j + 2 (l % 4) + e % 2,
// the layout of mma.m16n8k16 and, per warp, of wgmma.m64nNk16.
template <int Rows, int Cols>
struct Accumulator {
  static constexpr int kRowFragments = Rows / 16;
  static constexpr int kColFragments = Cols / 8;

  float v[kRowFragments][kColFragments][4];

  __device__ void zero() {
#pragma unroll
    for (auto& row : v)
#pragma unroll
      for (auto& fragment : row)
#pragma unroll
        for (float& x : fragment) x = 0.f;
  }
};

// Element strides of a [batch, seq, heads, d_head] tensor; d_head is contiguous.
struct Strides {
  i64 batch, seq, head;
};

// The arguments that the kernels of all passes have: what the caller asked. Lengths are those of
// the longest sequence; lse is [batch, heads, seq_len_q].
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

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;
template <class A, class B>
concept Same = kSame<A, B>;

}  // namespace fa
