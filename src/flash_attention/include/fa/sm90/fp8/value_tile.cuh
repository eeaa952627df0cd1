// SPDX-License-Identifier: Apache-2.0
// A block of V as the B operand of O += P V. 8-bit products want both operands contiguous along the
// contraction, so V is transposed before: [keys / 16][rows][16 bytes], without a swizzle. A row of the
// transpose is a column of V; rows after those are for sums (fp8/sums).
//
// P stays in the registers of S, so the 16 bytes are permuted keys: of the accumulators a lane holds the
// keys 8 g + 2 t + e (t its place in the quad, g and e 0 or 1), and of the A operand bytes 4 t to 4 t + 3.
// Byte 4 t + 2 g + e is therefore key 8 g + 2 t + e. Of every 16 rows, row 8 a + r is column 2 r + a, so that a
// lane's outputs are four neighbours. transpose.cuh gets both orders without a shuffle.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::sm90::fp8 {

inline constexpr int kStepKeys = 32;  // of one product

template <int Rows, int Keys>
struct ValueTile {
  static constexpr int kRows = Rows;
  static constexpr int kGroupKeys = 16;
  static constexpr int kGroupBytes = Rows * kGroupKeys;
  static constexpr int kBytes = Keys / kGroupKeys * kGroupBytes;
  static constexpr int kLoadedBytes = kBytes;

  struct Operand {
    u64 descriptor;

    // The 32 keys of step n.
    __device__ u64 step(int n) const {
      return descriptor + (n * (kStepKeys / kGroupKeys * kGroupBytes) >> 4);
    }
    // The same operand of the n-th tile after this one.
    __device__ Operand after(int n) const { return {descriptor + n * (kBytes >> 4)}; }
  };

  u32 address;

  __device__ explicit ValueTile(u32 in_shared_memory) : address(in_shared_memory) {}

  __device__ Operand operand() const {
    return {ptx::wgmma_descriptor(address, kGroupBytes, 8 * kGroupKeys, 0)};
  }
};

// Four numbers of a row that a lane has of two 8-column fragments, x and y, of an accumulator.
struct Four {
  float v[4];
};

// The pair of x, then that of y. `h` is the upper or the lower of the lane's rows.
__device__ inline Four concatenated(const float (&x)[4], const float (&y)[4], int h) {
  return {x[2 * h], x[2 * h + 1], y[2 * h], y[2 * h + 1]};
}

// The numbers of x at even places, those of y at odd ones.
__device__ inline Four interleaved(const float (&x)[4], const float (&y)[4], int h) {
  return {x[2 * h], y[2 * h], x[2 * h + 1], y[2 * h + 1]};
}

}  // namespace fa::sm90::fp8
