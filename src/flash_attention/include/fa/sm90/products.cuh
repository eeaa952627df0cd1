// SPDX-License-Identifier: Apache-2.0
// The two products of a warpgroup and its registers. Each warp holds 16 rows of S, P and O.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/ptx/ldmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm80/mma.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

template <class Config>
struct Products {
  using DType = typename Config::DType;
  using QTile = typename Shape<Config>::QTile;
  using KVTile = typename Shape<Config>::KVTile;
  using QOperand = typename QTile::RowOperand;
  using KOperand = typename KVTile::RowOperand;
  using VOperand = typename KVTile::ColumnOperand;
  static constexpr int kDimSteps = Config::kDHead / 16;

  template <int Keys>
  using Scores = Accumulator<kWarpRows, Keys>;
  template <int Keys>
  struct Weights {  // P as the A operand: pairs of elements, 16 keys in four registers
    u32 step[Keys / 16][4];
  };
  using Output = Accumulator<kWarpRows, Config::kDHead>;

  // S = Q K^T with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_scores(Scores<Keys>& s, QOperand q, KOperand k) {
    ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d)
      ptx::WgmmaFromShared<DType, Keys>::run(s, q.step(d), k.step(d), d != 0);
    ptx::wgmma_commit();
  }

  // O += P V with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_accumulate(Output& o, const Weights<Keys>& p, VOperand v) {
    ptx::wgmma_fence();  // what was done with these registers before is done
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  // The accumulator has the same lane map as the operand.
  template <int Keys>
  static __device__ void convert(Weights<Keys>& p, const Scores<Keys>& s) {
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&x)[4] = s.v[0][2 * n + e / 2];
        p.step[n][e] = DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
      }
  }

  // Computes S again, by this warp alone: Q's 16 rows from `q_row` of its tile, all keys of the block.
  static __device__ void scores_again(Scores<Config::kBC>& s, QTile q_tile, int q_row,
                                      KVTile k_tile) {
    s.zero();
#pragma unroll 1
    for (int d = 0; d < kDimSteps; ++d) {
      u32 q[4];
      ptx::ldmatrix_x4(q, q_tile.chunk(q_row + lane_id() % 16, 2 * d + lane_id() / 16));
      // The swizzle repeats every 8 rows: 16 rows on, only the row offset is another.
      const u32 keys = k_tile.chunk(lane_id() % 8 + lane_id() / 16 * 8, 2 * d + lane_id() / 8 % 2);
#pragma unroll
      for (int n = 0; n < Config::kBC / 16; ++n) {
        u32 k[4];
        ptx::ldmatrix_x4(k, keys + n * 16 * KVTile::kRowBytes);
        sm80::mma<DType>(s.v[0][2 * n], q, k[0], k[1]);
        sm80::mma<DType>(s.v[0][2 * n + 1], q, k[2], k[3]);
      }
    }
    ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
    __syncwarp();              // of all lanes, for one of which the tiles are released
  }
};

}  // namespace fa::sm90
