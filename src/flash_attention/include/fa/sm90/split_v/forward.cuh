// SPDX-License-Identifier: Apache-2.0
// The roles of kernels whose two consumer warpgroups share rows: warpgroup 0 produces with few registers,
// the two others consume with many.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/forward.cuh>
#include <fa/sm90/producer.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90::split_v {

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(sm90::check_slots<Config>());
  static_assert(
      PagesSlot<typename Config::Pages, Config>,
      "Pages: kBoxKeys<Keys>, load(tile, map, full, kv_head, key, batch, sequence, args, column)");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), request(), finish()");
  return true;
}

template <class Config, int SmemBytes>
__device__ constexpr bool check_host_numbers() {
  static_assert(Config::kSmemBytes == SmemBytes, "shared memory of a CTA");
  static_assert(Config::kTileRows == Shape<Config>::kBR, "rows of a tile");
  static_assert(Config::kQBoxHeads * Config::kQBoxQueries == Shape<Config>::kRows,
                "rows of a box of Q");
  static_assert(Config::kPanelColumns == kTightColumns<Config::kDHead>, "columns of a box");
  static_assert(Config::kBoxKeys == Config::Pages::template kBoxKeys<Config::kBC>,
                "keys of a box of K or V");
  return true;
}

template <class Config, class Memory, class Producer, class Consumer, class Maps>
__device__ void run(const Maps& maps, const ForwardKernelArgs& args, const void* dynamic) {
  Config::Splits::begin();
  check_smem_start(dynamic);
  const Memory smem(kSmemStart);
  if (threadIdx.x == 0) smem.init_barriers();
  if (Shape<Config>::kRows < kWarpgroupRows)  // rows of Q that no load fills
    clear_rows<(kHalves + 1) * kWarpgroupSize>(smem.q(), Shape<Config>::kRows, threadIdx.x);
  __syncthreads();  // the barriers are ready, the zeros are written
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      maps.prefetch();
      Producer(smem, maps, args).run();
    }
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    Consumer(smem, args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::split_v
