// SPDX-License-Identifier: Apache-2.0
// The products of the backward pass and their registers. A key warpgroup has the rows of its keys: S^T
// and dP^T with a column for each query, dK and dV with those of the head. All are asynchronous.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shape.cuh>

namespace fa::sm90::backward {

template <class Config>
struct Products {
  using DType = typename Config::DType;
  using KeyTile = typename Shape<Config>::KeyTile;
  using QueryTile = typename Shape<Config>::QueryTile;
  using Scores = Accumulator<kWarpRows, Config::kBR>;
  using Gradient = Accumulator<kWarpRows, Config::kDHead>;
  struct Pairs {  // P^T or dS^T in 16 bits, as the A operand: 16 queries in four registers
    u32 step[Config::kBR / 16][4];
  };

  // S^T = K Q^T, or dP^T = V dO^T.
  static __device__ void issue_scores(Scores& s, typename KeyTile::RowOperand keys,
                                      typename QueryTile::RowOperand queries) {
    using Wgmma = ptx::WgmmaBothShared<DType, Config::kBR, false, false>;
    ptx::wgmma_fence();  // what was done with these registers before is done
    Wgmma::start(s, keys.step(0), queries.step(0));
#pragma unroll
    for (int d = 1; d < Config::kDHead / 16; ++d) Wgmma::run(s, keys.step(d), queries.step(d));
    ptx::wgmma_commit();
  }

  // dV += P^T dO, or dK += dS^T Q.
  static __device__ void issue_accumulate(Gradient& gradient, const Pairs& p,
                                          typename QueryTile::ColumnOperand queries) {
    ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(gradient, p.step[n], queries.step(n));
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  // The accumulator has the same lane map as the operand.
  static __device__ void convert(Pairs& p, const Scores& s) {
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&x)[4] = s.v[0][2 * n + e / 2];
        p.step[n][e] = DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
      }
  }
};

// The slopes of a warpgroup's scores, a base class: it takes no room if there is nothing to keep.
template <class Config>
using Slopes = typename Config::Slopes::template Kept<Products<Config>, typename Config::Score>;

}  // namespace fa::sm90::backward
