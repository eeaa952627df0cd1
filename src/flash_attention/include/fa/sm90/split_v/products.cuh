// SPDX-License-Identifier: Apache-2.0
// The product with V of a warpgroup that has half of O's columns, and how P gets to it. Each warp holds 16
// rows of S and P, and of its half of O.
#pragma once
#include <fa/dtype.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>

namespace fa::sm90::split_v {

// HalfTile is a half of V, and PTile is P, in shared memory.
template <class Config, class HalfTile, class PTile_>
struct ValueProducts {
  using DType = typename Config::DType;
  using PTile = PTile_;
  using VOperand = typename HalfTile::ColumnOperand;
  using POperand = typename PTile::RowOperand;
  static constexpr int kHalfColumns = Config::kDV / kHalves;
  static constexpr int kKeySteps = Config::kBC / 16;

  using Scores = Accumulator<kWarpRows, Config::kBC>;
  using Output = Accumulator<kWarpRows, kHalfColumns>;
  struct Weights {  // P as the A operand: pairs of elements, 16 keys in four registers
    u32 step[kKeySteps][4];
  };

  // O += P V, asynchronously, with P in registers, ...
  static __device__ void issue_accumulate(Output& o, const Weights& p, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
      ptx::WgmmaFromRegisters<DType, kHalfColumns>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }
  // ... or in shared memory.
  static __device__ void issue_accumulate(Output& o, POperand p, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
      ptx::WgmmaBothShared<DType, kHalfColumns, false, true>::run(o, p.step(n), v.step(n));
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  static __device__ void convert(Weights& p, const Scores& s) {
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n) pack_operand<DType>(p.step[n], s.v[0], n);
  }

  // Writes a warp's rows of P, which start at `row` of the tile.
  static __device__ void write(PTile tile, int row, const Weights& p) {
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
      ptx::stmatrix_x4(tile.chunk(row + lane_id() % 16, 2 * n + lane_id() / 16), p.step[n]);
  }
};

}  // namespace fa::sm90::split_v
