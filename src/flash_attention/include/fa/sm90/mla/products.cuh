// SPDX-License-Identifier: Apache-2.0
// The products of a warpgroup and its registers. Each warp holds 16 rows of S and P, and of half of O's
// columns.
#pragma once
#include <fa/ptx/ldmatrix.cuh>
#include <fa/sm90/halves/products.cuh>
#include <fa/sm90/mla/shared_memory.cuh>

namespace fa::sm90::mla {

template <class Config>
struct Products : halves::ValueProducts<Config, typename Tiles<Config>::HalfTile,
                                        typename Tiles<Config>::PTile> {
  using DType = typename Config::DType;
  using typename halves::ValueProducts<Config, typename Tiles<Config>::HalfTile,
                                       typename Tiles<Config>::PTile>::Scores;
  using QOperand = typename Tiles<Config>::QTile::RowOperand;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;

  // How far the next part of a tile's columns is, in a descriptor.
  template <class Tile>
  static constexpr int kHalfSpan = Tiles<Config>::HalfTile::kCount * Tile::kPanelBytes >> 4;

  // The rotary columns of Q, which may stay in registers.
  static constexpr int kRotarySteps = Tiles<Config>::kRotaryColumns / 16;
  struct RotaryQueries {
    u32 step[kRotarySteps][4];
  };
  // Reads those of a warp's rows, which start at `row` of the tile.
  static __device__ void read(RotaryQueries& q, typename Tiles<Config>::QTile tile, int row) {
    constexpr int kFirst = Config::kDV / kChunkElements;
#pragma unroll
    for (int d = 0; d < kRotarySteps; ++d)
      ptx::ldmatrix_x4(q.step[d],
                       tile.chunk(row + lane_id() % 16, kFirst + 2 * d + lane_id() / 16));
  }

  // S = Q K^T, asynchronously, part by part of the columns of K. `wait(part)` waits for one. The parts of
  // stage `half` come in the order in which they are loaded.
  template <class Wait>
  static __device__ void issue_scores(Scores& s, const RotaryQueries& rotary, QOperand q,
                                      KOperand k, int half, Wait wait) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      const int part = nth_part(half, n);
      const int columns =
          n == kRotaryTurn ? Tiles<Config>::kRotaryColumns : Tiles<Config>::kHalfColumns;
      const QOperand q_part = {q.descriptor + part * (kHalfSpan<typename Tiles<Config>::QTile>)};
      const KOperand k_part = {k.descriptor + part * (kHalfSpan<typename Tiles<Config>::KTile>)};
      wait(part);
      ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
      for (int d = 0; d < columns / 16; ++d)
        if (Config::kRotaryInRegisters && n == kRotaryTurn)
          ptx::WgmmaFromRegistersByRows<DType, Config::kBC>::run(s, rotary.step[d % kRotarySteps],
                                                                 k_part.step(d));
        else
          ptx::WgmmaFromShared<DType, Config::kBC>::run(s, q_part.step(d), k_part.step(d),
                                                        n != 0 || d != 0);
    }
    ptx::wgmma_commit();
  }
};

}  // namespace fa::sm90::mla
