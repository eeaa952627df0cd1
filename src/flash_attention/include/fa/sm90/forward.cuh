// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel: products are wgmma, read straight from shared memory. Config binds the slots;
// Config::Roles says who copies and who computes.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/forward_args.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// Fails to compile at the first slot whose variant does not satisfy its concept: of every kernel.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::FunctionSlot<typename Config::Function>,
                "Function: kScores, kMasks, kSlopes, kListed");
  static_assert(attn::check_slots<Config>());
  static_assert(attn::RowsSlot<typename Config::Rows>,
                "Rows: kGroup, position(row), head(tile, row)");
  using Range = decltype(key_range<Config>(Tile{}, attn::Sequence{}, ForwardKernelArgs{}));
  static_assert(SplitsSlot<typename Config::Splits, Range>,
                "Splits: kSplitKv, kOnDevice, begin(); unless kOnDevice first_block(range, tile, "
                "split, args), end_block; with kSplitKv partial(tile, split, args), "
                "first_split(tile, args), end_split");
  static_assert(attn::RescaleSlot<typename Config::Rescale, Config>,
                "Rescale: kStale, try_stale_max<Exponential, DType>(block, s, stats, factor, "
                "scores_again, max_score), run<Exponential>(block, s, stats, factor)");
  return true;
}

// Numbers that the host uses for launches, tensor maps and split-KV scratch memory. The host computes
// them and passes them in Config; these asserts check that the headers compute the same.
template <class Config, int SmemBytes>
__device__ constexpr bool check_host_numbers() {
  using Rows = typename Config::Rows;
  static_assert(Config::kWarpgroupRows == kWarpgroupRows && Config::kWarpRows == kWarpRows,
                "rows of a warpgroup and of a warp");
  static_assert(
      Config::kPanelColumns == 64 || Config::kPanelColumns == kTightColumns<Config::kDHead>,
      "columns of a panel");
  static_assert(Config::kSmemBytes == SmemBytes, "shared memory of a CTA");
  static_assert(Config::kTileRows == Shape<Config>::kBR, "rows of a tile");
  static_assert(Config::kQBoxHeads == Rows::kGroup, "heads of a box of Q");
  static_assert(Config::kQBoxHeads * Config::kQBoxQueries == Shape<Config>::kRows,
                "rows of a box of Q");
  static_assert(kWarpRows % Rows::kGroup ||  // no box of O is stored
                    (Config::kOBoxHeads == Rows::kGroup &&
                     Config::kOBoxHeads * Config::kOBoxQueries == kWarpRows),
                "rows of a box of O");
  static_assert(Config::kBoxKeys == Config::Pages::template kBoxKeys<Config::kBC>,
                "keys of a box of K or V");
  return true;
}

template <class Config, class Maps>
__device__ __forceinline__ void forward(const Maps& maps, const ForwardKernelArgs& args,
                                        const void* smem) {
  check_smem_start(smem);
  Config::Roles::template run<Config>(maps, args, kSmemStart);
}

}  // namespace fa::sm90
