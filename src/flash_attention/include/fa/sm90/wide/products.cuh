// SPDX-License-Identifier: Apache-2.0
// The products of a warpgroup and its registers.
#pragma once
#include <fa/sm90/halves/products.cuh>
#include <fa/sm90/wide/tiles.cuh>

namespace fa::sm90::wide {

template <class Config>
using ValueProducts =
    halves::ValueProducts<Config, typename Tiles<Config>::HalfTile, typename Tiles<Config>::PTile>;

template <class Config>
struct Products : ValueProducts<Config> {
  using Base = ValueProducts<Config>;
  using typename Base::Scores;
  using QOperand = typename Tiles<Config>::QTile::RowOperand;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;

  // S = Q K^T, asynchronously, part by part of the columns. `wait(part)` waits for a part of K;
  // `release(part)` is called when it was read, but for the last part.
  template <class Wait, class Release>
  static __device__ void issue_scores(Scores& s, QOperand q, KOperand k, Wait wait,
                                      Release release) {
    constexpr int kPartSteps = Tiles<Config>::kPartColumns / 16;
#pragma unroll
    for (int part = 0; part < Tiles<Config>::kParts; ++part) {
      wait(part);
      ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
      for (int d = part * kPartSteps; d < min((part + 1) * kPartSteps, Config::kDHead / 16); ++d)
        ptx::WgmmaFromShared<typename Config::DType, Config::kBC>::run(s, q.step(d), k.step(d),
                                                                       d != 0);
      ptx::wgmma_commit();
      if (part == 0) continue;
      Base::template wait_products<1>();  // the part before was read
      release(part - 1);
    }
  }
};

}  // namespace fa::sm90::wide
