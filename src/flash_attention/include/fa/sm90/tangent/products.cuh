// SPDX-License-Identifier: Apache-2.0
// The six products of a warpgroup and its registers. Each warp holds 16 rows of S, P, O and their tangents.
#pragma once
#include <fa/core.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::tangent {

template <class Config>
struct Products {
  using DType = typename Config::DType;
  using QOperand = typename Shape<Config>::QTile::RowOperand;
  using KOperand = typename Shape<Config>::KTile::RowOperand;
  using VOperand = typename Shape<Config>::VTile::ColumnOperand;
  using Scores = Accumulator<kWarpRows, Config::kBC>;
  using Output = Accumulator<kWarpRows, Config::kDHead>;
  struct Weights {  // P, or P times the tangent of S, as the A operand: 16 keys in four registers
    u32 step[Config::kBC / 16][4];
  };

  // S = Q K^T, asynchronously.
  static __device__ void issue_scores(Scores& s, QOperand q, KOperand k) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
    multiply(s, q, k, false);
    ptx::wgmma_commit();
  }
  // The tangent of S, dQ K^T + Q dK^T, asynchronously.
  static __device__ void issue_slopes(Scores& ds, QOperand q, QOperand dq, KOperand k,
                                      KOperand dk) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
    multiply(ds, dq, k, false);
    multiply(ds, q, dk, true);
    ptx::wgmma_commit();
  }
  // O += P V, and P dV is added to the tangent of O, asynchronously.
  static __device__ void issue_weighted(Output& o, Output& d_o, const Weights& p, VOperand v,
                                        VOperand dv) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
    accumulate(o, p, v);
    accumulate(d_o, p, dv);
    ptx::wgmma_commit();
  }
  // W V is added to the tangent of O, asynchronously.
  static __device__ void issue_sloped(Output& d_o, const Weights& w, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
    accumulate(d_o, w, v);
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  static __device__ void convert(Weights& p, const Scores& s) {
#pragma unroll
    for (int n = 0; n < Config::kBC / 16; ++n) pack_operand<DType>(p.step[n], s.v[0], n);
  }

 private:
  static __device__ void multiply(Scores& s, QOperand q, KOperand k, bool accumulate) {
#pragma unroll
    for (int d = 0; d < Config::kDHead / 16; ++d)
      ptx::WgmmaFromShared<DType, Config::kBC>::run(s, q.step(d), k.step(d), accumulate || d != 0);
  }
  static __device__ void accumulate(Output& o, const Weights& p, VOperand v) {
#pragma unroll
    for (int n = 0; n < Config::kBC / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(o, p.step[n], v.step(n));
  }
};

}  // namespace fa::sm90::tangent
