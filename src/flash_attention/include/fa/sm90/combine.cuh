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
__device__ void combine(const ForwardKernelArgs& args) {
  static_assert(attn::DTypeSlot<typename Config::DType>, "DType: kLargestSum, pack(lo, hi)");
  static_assert(RowsSlot<typename Config::Rows>, "Rows: kGroup, position(row), head(tile, row)");
  static_assert(PartsOfSplits<typename Config::Splits>,
                "Splits: part(tile, split, args), first_split(tile, args), end_split");
  using Row = CombinedRow<Config>;
  static_assert(Config::kWarps == Row::kSums, "a warp has one of the sums");
  constexpr int kChunks = Config::kColumns / Row::kColumns;
  __shared__ float4 shared[kChunks][Row::kSums][kWarpSize];
  const Row row(args, PlaceInGrid{args, static_cast<int>(blockIdx.x)});
  ptx::wait_for_grid();  // the partial results are stored
  const auto weights = row.weights();
  if (args.lse && threadIdx.x == 0) row.store_lse(weights);
  float4 sums[kChunks] = {};
  row.sum_of_parts(sums, warp_id(), weights);
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) shared[chunk][warp_id()][lane_id()] = sums[chunk];
  __syncthreads();  // the sums of all warps are stored
  for (int chunk = warp_id(); chunk < kChunks; chunk += Row::kSums) {
    if (Row::column(chunk) >= args.d_v) return;
    float4 o = shared[chunk][0][lane_id()];
#pragma unroll
    for (int n = 1; n < Row::kSums; ++n) Row::add(o, 1.f, shared[chunk][n][lane_id()]);
    row.store(Row::column(chunk), o);
  }
}

}  // namespace fa::sm90
