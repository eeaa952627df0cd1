// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel of dK and dV for large head dimensions: a CTA has 64 keys, and three warpgroups split
// the products of each block of 64 queries. One has S, P, dP and dS, one dV, one dK.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/score_warpgroup.cuh>
#include <fa/sm90/backward/split_gradients.cuh>
#include <fa/sm90/backward/tile_order.cuh>

namespace fa::sm90::backward {

template <class Config>
__device__ void split(const TensorMaps& maps, const BackwardKernelArgs& args, const void* smem) {
  using Smem = SplitMemory<Config>;
  static_assert(check_slots<Config>());
  static_assert(Config::kBC == kPanelRows && Config::kBR == kPanelRows);
  static_assert(Smem::kBytes == Config::kSmemBytes, "the host's bytes of shared memory");
  Tile tile;
  typename Config::TileOrder::template Walk<Config>(args).next(tile);
  const attn::Sequence sequence = Config::Lengths::sequence(args, tile.batch);
  if (tile.key_first >= sequence.k_len) {  // other sequences are longer
    ptx::wait_for_grid();  // who waits for this kernel waits for those before it, too
    return;
  }
  if (threadIdx.x == 0) {
    check_smem_start(smem);
    Smem::init_barriers();
    const TileRange<Config> range(typename Config::Mask(args), tile.key_first, Config::kBC,
                                  sequence);
    write_work<Config>(Smem::mail(), tile, sequence, range, args);
    ptx::wait_for_grid();
  }
  ptx::launch_dependents();
  __syncthreads();  // the barriers and the mailbox are ready, and the kernel before has ended
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::grow_to<Config::kScoreRegisters>();
    ScoreWarpgroup<Config>(args).run();
  } else if (warpgroup == 1) {
    ptx::shrink_to<Config::kGradientRegisters>();
    ValueGradient<Config>(maps, args, sequence, tile).run();
  } else {
    ptx::shrink_to<Config::kGradientRegisters>();
    KeyGradient<Config>(maps, args, sequence, tile).run();
  }
}

}  // namespace fa::sm90::backward
