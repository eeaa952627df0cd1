// SPDX-License-Identifier: Apache-2.0
// O on its way out: each warp writes its 16 rows into a shared tile and stores them as boxes of a
// panel each. No other warp is waited for.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/ptx/stmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// The staged rows that belong to the sequence, chunk by chunk: the rows after its last are another
// sequence's.
template <class Config>
__device__ void store_rows(u32 shared, int row, const ForwardKernelArgs& args,
                           const attn::Sequence& sequence, int head, int first_row) {
  using OTile = typename Shape<Config>::QTile;
  const int chunks = args.d_v / kChunkElements;
  char* const to = static_cast<char*>(args.o) +
                   (sequence.q_batch * args.o_stride.batch + head * args.o_stride.head +
                    static_cast<i64>(sequence.q_first + first_row) * args.o_stride.seq) *
                       kElementBytes;
  for (int r = 0; r < min(sequence.q_len - first_row, kWarpRows); ++r)
    for (int chunk = lane_id(); chunk < chunks; chunk += kWarpSize)
      ptx::st_global_16(to + r * args.o_stride.seq * kElementBytes + chunk * kChunkBytes,
                        ptx::ld_shared_16(OTile::chunk(shared, row + r, chunk)));
  __syncwarp();  // the staged rows are read
}

// `row` counts within the shared tile, `first_row` within the sequence.
template <class Config>
__device__ void stage_and_store(const Accumulator<kWarpRows, Config::kDHead>& o, u32 shared,
                                int row, const TensorMap& map, const ForwardKernelArgs& args,
                                const attn::Sequence& sequence, int head, int first_row) {
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
  if (Config::Lengths::kPerBatch && first_row + kWarpRows > sequence.q_len) {
    store_rows<Config>(shared, row, args, sequence, head, first_row);
  } else if (lane_id() == 0) {
#pragma unroll
    for (int p = 0; p < OTile::kCount; ++p)
      ptx::tma_store_4d(map, shared + p * OTile::kPanelBytes + row * OTile::kRowBytes,
                        p * OTile::kColumns, head, sequence.q_first + first_row, sequence.q_batch);
    ptx::tma_commit();
  }
}

}  // namespace fa::sm90
