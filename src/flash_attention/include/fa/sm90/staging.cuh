// SPDX-License-Identifier: Apache-2.0
// O on its way out: each warp writes its 16 rows into a shared tile and stores them as boxes of a
// panel each. No other warp is waited for.
#pragma once
#include <fa/ptx/stmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// `row` counts within the shared tile, `first_row` within the tensor.
template <class Config>
__device__ void stage_and_store(const Accumulator<kWarpRows, Config::kDHead>& o, u32 shared,
                                int row, const TensorMap& map, Tile tile, int first_row) {
  using OTile = typename Shape<Config>::QTile;
#pragma unroll
  for (int d = 0; d < Config::kDHead / 16; ++d) {
    u32 pairs[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float (&x)[4] = o.v[0][2 * d + e / 2];
      pairs[e] = Config::DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
    }
    ptx::stmatrix_x4(OTile::chunk(shared, row + lane_id() % 16, 2 * d + lane_id() / 16), pairs);
  }
  ptx::fence_proxy_async();  // the copy engine sees what the lanes wrote
  __syncwarp();
  if (lane_id() == 0) {
#pragma unroll
    for (int p = 0; p < OTile::kCount; ++p)
      ptx::tma_store_4d(map, shared + p * OTile::kPanelBytes + row * OTile::kRowBytes,
                        p * OTile::kColumns, tile.head, first_row, tile.batch);
    ptx::tma_commit();
  }
}

}  // namespace fa::sm90
