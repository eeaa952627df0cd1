// SPDX-License-Identifier: Apache-2.0
// Storing rows of a gradient: a warp writes its 16 rows into a shared tile. It stores them by TMA, one box
// per panel; where the rows of a sequence end among them, row by row.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward {

// Rows after the end of a packed sequence belong to another one, or to nobody. Products read them with
// factors of zero, and 0 times NaN is NaN, so they are cleared.

// Waits for all warpgroups that compute together.
template <int Warpgroups>
__device__ void sync_warpgroups() {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers), Warpgroups * kWarpgroupSize);
}
template <class Config>
__device__ void sync_key_warpgroups() {
  sync_warpgroups<Shape<Config>::kKeyWarpgroups>();
}

// Clears the rows from `first` to `end` of a shared tile with `threads` threads, of which this is one. The
// rows of a panel follow each other, and the swizzle stays inside of a row.
template <class Tile>
__device__ void clear_rows(Tile tile, int first, int end, int thread, int threads) {
#pragma unroll 2
  for (u32 at = first * Tile::kRowBytes + thread * kChunkBytes; at < end * Tile::kRowBytes;
       at += threads * kChunkBytes)
#pragma unroll
    for (int p = 0; p < Tile::kCount; ++p) ptx::st_shared_16(tile.panel(p) + at, {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

// Rows `first` to `first` + 15 of the tile, times `scale` in 16 bits.
template <class DType, class Rows, class Tile>
__device__ void stage_rows(const Rows& rows, float scale, Tile tile, int first) {
#pragma unroll
  for (int d = 0; d < Rows::kColFragments / 2; ++d) {
    u32 pairs[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float (&x)[4] = rows.v[0][2 * d + e / 2];
      pairs[e] = DType::pack(x[e % 2 * 2] * scale, x[e % 2 * 2 + 1] * scale);
    }
    ptx::stmatrix_x4(tile.chunk(first + lane_id() % 16, 2 * d + lane_id() / 16), pairs);
  }
  ptx::fence_proxy_async();  // TMA sees what this lane wrote
  __syncwarp();              // and what all lanes wrote
}

// A tensor and some of its columns.
struct Columns {
  void* tensor;
  const Strides& strides;
  int count;
  int first = 0;
};

// Those of a CTA, from `first` on, if kPasses CTAs share the `count` columns of a tensor.
template <class Config>
__device__ Columns columns_of(void* tensor, const Strides& strides, int count, int first) {
  if (Config::kPasses == 1) return {tensor, strides, count};
  return {tensor, strides, min(count - first, Config::kDHead), first};
}

// Where rows go: the columns, and the place of the first row.
struct RowsOf {
  Columns columns;
  int row, head, batch;

  __device__ char* address() const {
    const Strides& strides = columns.strides;
    return static_cast<char*>(columns.tensor) +
           (batch * strides.batch + row * strides.seq + head * strides.head + columns.first) *
               kElementBytes;
  }
};

// Stores staged rows, of which the sequence has `rows` more from the first one on. Rows after a packed
// sequence belong to another one.
template <bool PerBatch, class Tile>
__device__ void store_staged(Tile staged, int first, int rows, const TensorMap& map,
                             const RowsOf& to) {
  if (PerBatch && rows < kWarpRows) {
#pragma unroll 1  // rare, and small problems wait for their instructions
    for (int r = 0; r < rows; ++r)
#pragma unroll 1
      for (int chunk = lane_id(); chunk < to.columns.count / kChunkElements; chunk += kWarpSize)
        ptx::st_global_16(
            to.address() + r * to.columns.strides.seq * kElementBytes + chunk * kChunkBytes,
            ptx::ld_shared_16(staged.chunk(first + r, chunk)));
    ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
    __syncwarp();              // the staged rows were read
  } else if (lane_id() == 0) {
#pragma unroll
    for (int p = 0; p < Tile::kCount; ++p)
      ptx::tma_store_4d(map, staged.panel(p) + first * Tile::kRowBytes,
                        to.columns.first + p * Tile::kColumns, to.head, to.row, to.batch);
    ptx::tma_commit();
  }
}

// Stores a warpgroup's 64 rows of dK or dV of some of the heads, as accumulators have them. `sums` is dk_sum or
// dv_sum.
template <class Rows>
__device__ void store_sum(const Rows& rows, float* sums, Mailbox mail, int warpgroup) {
  const i64 row = mail.read(Word::kSumRow) + warpgroup * kWarpgroupRows;
  float4* const to = reinterpret_cast<float4*>(sums + row * 8 * Rows::kColFragments) +
                     threadIdx.x % kWarpgroupSize;
#pragma unroll
  for (int j = 0; j < Rows::kColFragments; ++j) {
    const float (&x)[4] = rows.v[0][j];
    to[j * kWarpgroupSize] = {x[0], x[1], x[2], x[3]};
  }
}

// Adds such rows to those of other heads by bulk copies, from staging that has room for half of them. Each warp
// stages and adds its own. From registers an addition took about 40 clocks longer per warp and fragment.
template <class Config, class Rows>
__device__ void add_sum(const Rows& rows, float* sums, Mailbox mail, int warpgroup) {
  constexpr int kHalf = Rows::kColFragments / 2, kFragmentFloats = 4 * kWarpSize;
  constexpr int kFragmentBytes = kFragmentFloats * static_cast<int>(sizeof(float));
  static_assert(Shape<Config>::kKeyWarps * kHalf * kFragmentBytes ==
                Shape<Config>::KeyTile::kBytes);
  const int warp = warpgroup * kWarpgroupWarps + warp_in_group();
  const u32 staged = SharedMemory<Config>::gradient().address + warp * kHalf * kFragmentBytes;
  const i64 row = mail.read(Word::kSumRow) + warpgroup * kWarpgroupRows;
  float* const to = sums + row * 8 * Rows::kColFragments + warp_in_group() * kFragmentFloats;
#pragma unroll
  for (int first = 0; first < Rows::kColFragments; first += kHalf) {
    if (lane_id() == 0) ptx::tma_wait_read();  // the additions before have read it
    __syncwarp();                              // all lanes may write over it
#pragma unroll
    for (int j = 0; j < kHalf; ++j)
      ptx::st_shared_floats(staged + j * kFragmentBytes + lane_id() * 16, rows.v[0][first + j]);
    ptx::fence_proxy_async();  // the copy engine sees what this lane wrote
    __syncwarp();              // and what all lanes wrote
    if (lane_id() > 0) continue;
#pragma unroll
    for (int j = 0; j < kHalf; ++j)
      ptx::bulk_add_f32(to + (first + j) * kWarpgroupWarps * kFragmentFloats,
                        staged + j * kFragmentBytes, kFragmentBytes);
    ptx::tma_commit();
  }
}

}  // namespace fa::sm90::backward
