// SPDX-License-Identifier: Apache-2.0
// Combines the split-KV partial results. A CTA combines one row: its warps share the partial results.
#pragma once
#include <fa/ptx/grid_dependency.cuh>
#include <fa/sm90/combined_row.cuh>

namespace fa::sm90 {

// The rows of all heads of all sequences, one after the other.
struct PlaceInGrid {
  const ForwardKernelArgs& args;
  const int index;

  __device__ int position() const { return index % args.seq_len_q; }
  __device__ int head() const { return index / args.seq_len_q % args.heads; }
  __device__ int batch() const { return index / args.seq_len_q / args.heads; }
};

template <class Config>
__device__ void store_columns(const CombinedRow<Config>& row, int first_column, int end_column,
                              float offset, float inverse) {
  using Row = CombinedRow<Config>;
  __shared__ float4 sums[Row::kSums][kWarpSize];
  const int column = first_column + 4 * lane_id();
  const bool there = column < end_column;
  if (first_column > 0) __syncthreads();  // the sums of the previous columns were read
  if (there) sums[warp_id()][lane_id()] = row.sum_of_parts(warp_id(), column, offset, inverse);
  __syncthreads();  // the sums of all warps are stored
  if (warp_id() > 0 || !there) return;
  float4 o = sums[0][lane_id()];
#pragma unroll
  for (int n = 1; n < Row::kSums; ++n) Row::add(o, sums[n][lane_id()]);
  row.store(column, o);
}

template <class Config>
__device__ void combine(const ForwardKernelArgs& args) {
  static_assert(attn::DTypeSlot<typename Config::DType>, "DType: kLargestSum, pack(lo, hi)");
  static_assert(RowsSlot<typename Config::Rows>, "Rows: kGroup, position(row), head(tile, row)");
  static_assert(PartsOfSplits<typename Config::Splits>,
                "Splits: part(tile, split, args), first_split(tile, args), end_split");
  static_assert(Config::kWarps == CombinedRow<Config>::kSums, "a warp has one of the sums");
  const CombinedRow<Config> row(args, PlaceInGrid{args, static_cast<int>(blockIdx.x)});
  ptx::wait_for_grid();  // the partial results are stored
  const auto weights = row.weights();
  for (int column = 0; column < args.d_v; column += CombinedRow<Config>::kColumns)
    store_columns(row, column, args.d_v, weights.offset, weights.inverse());
  if (args.lse && threadIdx.x == 0) row.store_lse(weights);
}

}  // namespace fa::sm90
