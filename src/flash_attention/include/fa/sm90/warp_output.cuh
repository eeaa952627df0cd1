// SPDX-License-Identifier: Apache-2.0
// The output of a warp at the end of a tile: 16 rows of O, and where they are stored.
#pragma once
#include <fa/attn/row_end.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// Exchanges between the four lanes of a quad, which hold neighbouring columns of an accumulator.

// The lanes whose number has the bit `Lanes` give `low`, the others `high`, and take the other's.
template <int Lanes>
__device__ inline void exchange(u32& low, u32& high) {
  const bool upper = lane_id() & Lanes;
  const u32 taken = __shfl_xor_sync(~0u, upper ? low : high, Lanes);
  (upper ? low : high) = taken;
}

// Word i of lane t becomes word t of lane i.
__device__ inline void transpose_quad(u32 (&word)[4]) {
  exchange<1>(word[0], word[1]);
  exchange<1>(word[2], word[3]);
  exchange<2>(word[0], word[2]);
  exchange<2>(word[1], word[3]);
}

// The output does not use the buffer of Q: the next Q may be loaded when this one was read.
struct OutsideQueries {
  template <class Consumer>
  static __device__ void queries_read(Consumer& consumer) {
    consumer.release_q();
  }
};

template <class Config_>
struct WarpOutput {
  using Config = Config_;
  using Rows = typename Config::Rows;

  const Accumulator<kWarpRows, Config::kDHead>& o;
  const ForwardKernelArgs& args;
  const attn::Sequence& sequence;
  const Tile& tile;
  int tile_row;          // the warpgroup's first
  int first_column = 0;  // of O; warpgroups that share rows have other columns

  __device__ int position(int r) const { return Rows::position(row(r)); }
  __device__ int head(int r) const { return Rows::head(tile.head, row(r)); }
  __device__ int row(int r) const { return tile_row + warp_in_group() * kWarpRows + r; }

  // Whether row r of the warp holds a query.
  __device__ bool used(int r) const {
    return warp_in_group() * kWarpRows + r < Shape<Config>::kRows && position(r) < sequence.q_len;
  }

  // What combines the pieces of a tile adds the sinks.
  __device__ void add_sinks(attn::RowEnds& ends) const {
    if (Config::Splits::kOnDevice && !tile.piece.is_whole()) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) Config::Sinks::add(ends.row[h], args, head(lane_row(h)));
  }
  // `scale` is that of the maxima.
  __device__ attn::RowEnds ends(const attn::RowStats<kWarpRows>& stats, float scale) const {
    attn::RowEnds ends(stats, scale);
    add_sinks(ends);
    return ends;
  }

  // Whether the warp stores what a row has one of.
  __device__ bool stores_row_values() const { return first_column == 0; }

  // The log-sum-exp of the rows; the first lane of a quad stores.
  __device__ void store_lse(const attn::RowEnds& ends) const {
    if (!args.lse || !stores_row_values()) return;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (const int r = lane_row(h); lane_id() % 4 == 0 && used(r))
        args.lse[sequence.q_batch * args.lse_batch_stride + head(r) * args.lse_head_stride +
                 sequence.q_first + position(r)] = ends.row[h].lse();
  }

  // Stores a lane's elements of O: `store_of(r, h)` is called for every used row r, and its result is
  // called with a column and the two elements from there on.
  template <class StoreOf>
  __device__ void store_pairs(StoreOf store_of) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane_row(h);
      if (!used(r)) continue;
      const auto store = store_of(r, h);
#pragma unroll
      for (int j = 0; j < Config::kDHead / 8; ++j)
        if (const int column = first_column + 8 * j + 2 * (lane_id() % 4); column < args.d_v)
          store(column, o.v[0][j][2 * h], o.v[0][j][2 * h + 1]);
    }
  }

  // Stores the used rows of O in chunks of 8 columns: `row_of(r)` is the address of row r. The lanes of
  // a quad have two columns of each of four chunks, and exchange them for one chunk each.
  template <class RowOf>
  __device__ void store_chunks(RowOf row_of) const {
    constexpr int kChunks = Config::kDHead / kChunkElements;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane_row(h);
      char* const row = ptx::computed_once(row_of(r));
#pragma unroll
      for (int j = 0; j < kChunks; j += 4) {
        u32 pair[4] = {};
#pragma unroll
        for (int i = 0; i < 4 && j + i < kChunks; ++i)
          pair[i] = Config::DType::pack(o.v[0][j + i][2 * h], o.v[0][j + i][2 * h + 1]);
        transpose_quad(pair);
        const int chunk = j + lane_id() % 4, column = first_column + chunk * kChunkElements;
        if (used(r) && chunk < kChunks && column < args.d_v)
          ptx::st_global_16(row + column * kElementBytes, {pair[0], pair[1], pair[2], pair[3]});
      }
    }
  }

  static __device__ int lane_row(int h) { return lane_id() / 4 + 8 * h; }
};

// Storing O: each warp writes its 16 rows into a shared tile. It stores them by TMA, one box per panel,
// if they are adjacent in the tensor, else row by row. It waits for no other warp.

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
  const int first = warp_in_group() * kWarpRows;  // row of the shared tile
#pragma unroll
  for (int d = 0; d < Config::kDHead / 16; ++d) {
    u32 pairs[4];
    pack_operand<typename Config::DType>(pairs, warp.o.v[0], d);
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
