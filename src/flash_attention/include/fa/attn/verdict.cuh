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

template <int Block = kBoundsBlock>
__device__ __forceinline__ int blocks_of(int size) {
  return (size + Block - 1) / Block;
}

// The least and the greatest of several elements. Both are NaN if an element is.
template <class T>
struct Extremes {
  T low, high;

  __device__ void add(const Extremes& more) {
    low = smaller(low, more.low), high = larger(high, more.high);
  }
};

__device__ __forceinline__ int clamped(i64 index, int size) {
  return static_cast<int>(min(max(index, 0ll), static_cast<i64>(size) - 1));
}

// Those of rows and columns of which the last ones count too. `at(row, column)` are those at a place. Too many
// places are not looked at.
template <class T, class At>
__device__ Extremes<T> extremes_of(int top, int bottom, int first, int last, bool& trusted,
                                   const At& at) {
  if (static_cast<i64>(bottom - top + 1) * (last - first + 1) > kMostBlocks)
    trusted = false, bottom = top, last = first;
  Extremes<T> found = at(top, first);
  for (int row = top; row <= bottom; ++row)
    for (int column = first + (row == top); column <= last; ++column) found.add(at(row, column));
  return found;
}

// Those of the elements from one index to another, in matrices of `rows` by `columns` elements.
template <class T, class Read>
__device__ Extremes<T> extremes(int rows, i64 top, i64 bottom, int columns, i64 first, i64 last,
                                bool& trusted, const Read& read) {
  return extremes_of<T>(clamped(top, rows), clamped(bottom, rows), clamped(first, columns),
                        clamped(last, columns), trusted, [&](int row, int column) {
                          const T element = read(row, column);
                          return Extremes<T>{element, element};
                        });
}

// Those of blocks of `Height` rows and kBoundsBlock columns of a matrix.
template <class T, int Height>
struct Table {
  const T* entries;  // {minimum, maximum} of every block of every matrix
  i64 matrix;

  __device__ Extremes<T> extremes(int rows, i64 top, i64 bottom, int columns, i64 first, i64 last,
                                  bool& trusted) const {
    const int blocks = blocks_of(columns);
    const T* const own = entries + 2 * matrix * blocks_of<Height>(rows) * blocks;
    return extremes_of<T>(clamped(top, rows) / Height, clamped(bottom, rows) / Height,
                          clamped(first, columns) / kBoundsBlock,
                          clamped(last, columns) / kBoundsBlock, trusted, [&](int row, int column) {
                            const T* const entry =
                                own + 2 * (static_cast<i64>(row) * blocks + column);
                            return Extremes<T>{entry[0], entry[1]};
                          });
  }
};

// Fills a table; warps share its entries. `read(matrix, row, column)` is an element.
template <int Height, class T, class Read>
__device__ void fill_bounds(T* table, i64 matrices, int rows, int columns, i64 warp, i64 warps,
                            const Read& read) {
  const int high = blocks_of<Height>(rows), wide = blocks_of(columns);
  for (i64 entry = warp; entry < matrices * high * wide; entry += warps) {
    const i64 matrix = entry / wide / high;
    const int top = static_cast<int>(entry / wide % high) * Height;
    const int left = static_cast<int>(entry % wide) * kBoundsBlock + lane_id();
    const auto at = [&](int row, int column) {
      const T element = read(matrix, within(row, rows), within(column, columns));
      return Extremes<T>{element, element};
    };
    Extremes<T> found = at(top, left);
#pragma unroll 8
    for (int row = top; row < top + Height; ++row)
      found.add(at(row, left)), found.add(at(row, left + kWarpSize));
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
      found.add(
          {__shfl_xor_sync(~0u, found.low, distance), __shfl_xor_sync(~0u, found.high, distance)});
    if (lane_id() == 0) table[2 * entry] = found.low, table[2 * entry + 1] = found.high;
  }
}

}  // namespace fa::attn::function
