// SPDX-License-Identifier: Apache-2.0
// How the producer names the next tile to the consumers: four words and the lengths of its sequence
// in shared memory, and a pair of barriers around them.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

inline constexpr Tile kNoMoreTiles = {-1, 0, 0, 0};

template <class Config>
__device__ void post_tile(const SharedMemory<Config>& smem, const Tile& tile,
                          const attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(smem.mail_empty(), parity ^ 1);  // everybody read the tile before
  ptx::st_shared_16(smem.mail(), {static_cast<u32>(tile.q_block), static_cast<u32>(tile.head),
                                  static_cast<u32>(tile.batch), static_cast<u32>(tile.split)});
  Config::Lengths::write(sequence, smem.mail() + 16);
  ptx::mbarrier_arrive(smem.mail_full());
}

// By every warp; false after the last tile.
template <class Config>
__device__ bool take_tile(const SharedMemory<Config>& smem, const ForwardKernelArgs& args,
                          Tile& tile, attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(smem.mail_full(), parity);
  // Only the lane that gives the mail back reads it: no other read is left to wait for.
  ptx::Chunk mail = {};
  if (lane_id() == 0) mail = ptx::ld_shared_16(smem.mail());
  const auto uniform = [](u32 x) { return static_cast<int>(__shfl_sync(~0u, x, 0)); };
  tile = {uniform(mail.x), uniform(mail.y), uniform(mail.z),
          Config::Splits::kParts ? uniform(mail.w) : 0};
  sequence = Config::Lengths::read(args, tile.batch, smem.mail() + 16);
  if (lane_id() == 0) ptx::mbarrier_arrive(smem.mail_empty());
  return tile.q_block >= 0;
}

}  // namespace fa::sm90
