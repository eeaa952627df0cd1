// SPDX-License-Identifier: Apache-2.0
// What is known of a user's mask in a tile before it is computed: bounds of captured tensors.
#pragma once
#include <fa/attn/function.cuh>
#include <fa/core.cuh>

namespace fa::attn::function {

inline constexpr int kBoundsBlock = 64;  // elements of a row that share a minimum and a maximum
inline constexpr int kMostBlocks = 64;   // that are looked at for one read

__device__ __forceinline__ i64 floor_divide(i64 a, i64 b) {
  const i64 quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}

// A bound of a float that holds for every order of roundings.
__device__ __forceinline__ float below(float x) { return x - (fabsf(x) * 0x1p-20f + 1e-37f); }
__device__ __forceinline__ float above(float x) { return x + (fabsf(x) * 0x1p-20f + 1e-37f); }

__device__ __forceinline__ int blocks_of(int size) {
  return (size + kBoundsBlock - 1) / kBoundsBlock;
}

// The bounds of the elements `first` to `last` of a row of `size` elements. A table holds {minimum,
// maximum} of every block of every row; both are NaN if an element is.
template <class T>
struct Extremes {
  T low, high;

  __device__ Extremes(const T* table, i64 row, int size, i64 first, i64 last, bool& trusted) {
    const int begin = clamped(first, size) / kBoundsBlock, end = clamped(last, size) / kBoundsBlock;
    trusted = trusted && end - begin < kMostBlocks;
    const T* entry = table + 2 * (row * blocks_of(size) + begin);
    low = entry[0], high = entry[1];
    for (int block = begin + 1; block <= end && block < begin + kMostBlocks; ++block) {
      entry += 2;
      low = smaller(low, entry[0]), high = larger(high, entry[1]);
    }
  }

 private:
  static __device__ int clamped(i64 index, int size) {
    return static_cast<int>(min(max(index, 0ll), static_cast<i64>(size) - 1));
  }
};

// Fills a table; warps share its entries. `read(row, column)` is an element.
template <class T, class Read>
__device__ void fill_bounds(T* table, i64 rows, int size, i64 warp, i64 warps, const Read& read) {
  const int blocks = blocks_of(size);
  for (i64 entry = warp; entry < rows * blocks; entry += warps) {
    const i64 row = entry / blocks;
    const int column = static_cast<int>(entry % blocks) * kBoundsBlock + lane_id();
    const T first = read(row, within(column, size));
    const T second = read(row, within(column + kWarpSize, size));
    T low = smaller(first, second), high = larger(first, second);
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      low = smaller(low, __shfl_xor_sync(~0u, low, distance));
      high = larger(high, __shfl_xor_sync(~0u, high, distance));
    }
    if (lane_id() == 0) table[2 * entry] = low, table[2 * entry + 1] = high;
  }
}

}  // namespace fa::attn::function
