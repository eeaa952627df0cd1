// SPDX-License-Identifier: Apache-2.0
// The products of a warpgroup and its registers. Each warp holds 16 rows of S and P, and of half of O's
// columns.
#pragma once
#include <fa/ptx/ldmatrix.cuh>
#include <fa/ptx/stmatrix.cuh>
#include <fa/sm90/mla/shared_memory.cuh>

namespace fa::sm90::mla {

template <class Config>
struct Products {
  using DType = typename Config::DType;
  using PTile = typename Tiles<Config>::PTile;
  using QOperand = typename Tiles<Config>::QTile::RowOperand;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;
  using VOperand = typename Tiles<Config>::HalfTile::ColumnOperand;
  using POperand = typename PTile::RowOperand;
  static constexpr int kHalfColumns = Tiles<Config>::kHalfColumns;
  static constexpr int kKeySteps = Config::kBC / 16;

  // How far the next part of a tile's columns is, in a descriptor.
  template <class Tile>
  static constexpr int kHalfSpan = Tiles<Config>::HalfTile::kCount * Tile::kPanelBytes >> 4;

  using Scores = Accumulator<kWarpRows, Config::kBC>;
  using Output = Accumulator<kWarpRows, kHalfColumns>;
  struct Weights {  // P as the A operand: pairs of elements, 16 keys in four registers
    u32 step[kKeySteps][4];
  };

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
      const int columns = n == kRotaryTurn ? Tiles<Config>::kRotaryColumns : kHalfColumns;
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

  // O += P V, asynchronously, with P in registers, ...
  static __device__ void issue_accumulate(Output& o, const Weights& p, VOperand v) {
    ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
      ptx::WgmmaFromRegisters<DType, kHalfColumns>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }
  // ... or in shared memory.
  static __device__ void issue_accumulate(Output& o, POperand p, VOperand v) {
    ptx::wgmma_fence();  // what was done with these registers before is done
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

  // The accumulator has the same lane map as the operand.
  static __device__ void convert(Weights& p, const Scores& s) {
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&x)[4] = s.v[0][2 * n + e / 2];
        p.step[n][e] = DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
      }
  }

  // Writes a warp's rows of P, which start at `row` of the tile.
  static __device__ void write(PTile tile, int row, const Weights& p) {
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n)
      ptx::stmatrix_x4(tile.chunk(row + lane_id() % 16, 2 * n + lane_id() / 16), p.step[n]);
  }
};

}  // namespace fa::sm90::mla
