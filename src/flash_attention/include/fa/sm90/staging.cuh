// SPDX-License-Identifier: Apache-2.0
// Storing O: each warp writes its 16 rows into a shared tile. It stores them by TMA, one box per panel,
// if they are adjacent in the tensor, else row by row. It waits for no other warp.
#pragma once
#include <fa/ptx/memory.cuh>
#include <fa/ptx/stmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

// The staged rows that hold queries, chunk by chunk.
template <class Config>
__device__ void store_rows(const WarpOutput<Config>& warp, typename Shape<Config>::QTile staged,
                           int first) {
  const ForwardKernelArgs& args = warp.args;
  const int chunks = args.d_v / kChunkElements;
  char* const base = static_cast<char*>(args.o) + (warp.sequence.q_batch * args.o_stride.batch +
                                                   warp.sequence.q_first * args.o_stride.seq) *
                                                      kElementBytes;
  for (int r = 0; r < kWarpRows; ++r) {
    if (!warp.used(r)) continue;
    char* const to =
        base +
        (warp.head(r) * args.o_stride.head + warp.position(r) * args.o_stride.seq) * kElementBytes;
    for (int chunk = lane_id(); chunk < chunks; chunk += kWarpSize)
      ptx::st_global_16(to + chunk * kChunkBytes,
                        ptx::ld_shared_16(staged.chunk(first + r, chunk)));
  }
  __syncwarp();  // the staged rows were read
}

template <class Config>
__device__ void stage_and_store(const WarpOutput<Config>& warp,
                                typename Shape<Config>::QTile staged, const TensorMap& map) {
  using OTile = typename Shape<Config>::QTile;
  const int first = warp.warp_in_group() * kWarpRows;  // row of the shared tile
#pragma unroll
  for (int d = 0; d < Config::kDHead / 16; ++d) {
    u32 pairs[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float (&x)[4] = warp.o.v[0][2 * d + e / 2];
      pairs[e] = Config::DType::pack(x[e % 2 * 2], x[e % 2 * 2 + 1]);
    }
    ptx::stmatrix_x4(staged.chunk(first + lane_id() % 16, 2 * d + lane_id() / 16), pairs);
  }
  ptx::fence_proxy_async();  // TMA sees what this lane wrote
  __syncwarp();              // and what all lanes wrote
  // Rows after a packed sequence belong to the next one; grouped heads are a box if queries are whole.
  const bool partial = Config::Lengths::kPerBatch && !warp.used(kWarpRows - 1);
  if (kWarpRows % Config::Rows::kGroup || partial) {
    store_rows(warp, staged, first);
  } else if (lane_id() == 0) {
#pragma unroll
    for (int p = 0; p < OTile::kCount; ++p)
      ptx::tma_store_4d(map, staged.panel(p) + first * OTile::kRowBytes, p * OTile::kColumns,
                        warp.tile.head * Config::Rows::kGroup,
                        warp.sequence.q_first + warp.position(0), warp.sequence.q_batch);
    ptx::tma_commit();
  }
}

}  // namespace fa::sm90
