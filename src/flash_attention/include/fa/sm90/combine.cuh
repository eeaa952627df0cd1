// SPDX-License-Identifier: Apache-2.0
// Combines the split-KV partial results. A CTA combines one row, or every warp one where there are many rows. The
// bits are the same.
#pragma once
#include <fa/dtype.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/combined_row.cuh>

namespace fa::sm90 {

// The warps of the CTA share the partial results of a row.
template <class Config, class Row>
__device__ void combine_together(const Row& row, const ForwardKernelArgs& args) {
  static_assert(Config::kWarps == Row::kSums, "a warp has one of the sums");
  constexpr int kChunks = Config::kColumns / Row::kColumns;
  __shared__ float4 shared[kChunks][Row::kSums][kWarpSize];
  const auto weights = row.weights();
  if (args.lse && threadIdx.x == 0) row.store_lse(weights);
  float4 sums[kChunks] = {};
  row.sum_of_partials(sums, warp_id(), weights);
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

template <class Config>
__device__ void combine(const ForwardKernelArgs& args) {
  static_assert(attn::DTypeSlot<typename Config::DType>, "DType: kLargestSum, pack(lo, hi)");
  static_assert(attn::RowsSlot<typename Config::Rows>,
                "Rows: kGroup, position(row), head(tile, row)");
  static_assert(PartialsOfSplits<typename Config::Splits>,
                "Splits: partial(tile, split, args), first_split(tile, args), end_split");
  static_assert(OutputRowSlot<typename Config::OutputRow,
                              PartialRows<typename Config::Rows, Config::kTileRows>>,
                "Place: exists(), position(), head(), batch(), tile, o_batch, o_row");
  const int cta = blockIdx.x;
  const typename Config::OutputRow place{
      args, Config::kRowInWarp ? cta * Config::kWarps + warp_id() : cta};
  const CombinedRow<Config, typename Config::OutputRow> row(args, place);
  ptx::wait_for_grid();  // the partial results are stored
  if (!place.exists()) return;
  if constexpr (!Config::kRowInWarp)
    combine_together<Config>(row, args);
  else if (place.batch() < args.batch)  // the last CTA may have warps without a row
    row.store_few();
}

}  // namespace fa::sm90
