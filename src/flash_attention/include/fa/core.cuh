// SPDX-License-Identifier: Apache-2.0
// Basic types: integers, thread coordinates, the accumulator tile.
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

}  // namespace fa
