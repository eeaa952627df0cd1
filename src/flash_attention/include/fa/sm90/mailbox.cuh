// SPDX-License-Identifier: Apache-2.0
// How the producer tells the consumers the next tile: four words in shared memory, four more for its
// sequence if sequences differ in length, and a pair of mbarriers for them.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

inline constexpr Tile kNoMoreTiles = {-1, 0, 0, 0};

__device__ inline void write_words(u32 address, int x, int y, int z, int w) {
  ptx::st_shared_16(address, {static_cast<u32>(x), static_cast<u32>(y), static_cast<u32>(z),
                              static_cast<u32>(w)});
}

__device__ inline int of_first_lane(u32 word) {
  return static_cast<int>(__shfl_sync(~0u, word, 0));
}

template <class Config>
__device__ void post_tile(Mail mail, const Tile& tile, const attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(mail.empty, parity ^ 1);  // everybody has read the previous tile
  write_words(mail.tile, tile.q_block, tile.head, tile.batch, tile.split);
  // Of the keys, consumers need only their number.
  if (Config::Lengths::kPerBatch)
    write_words(mail.sequence, sequence.q_len, sequence.k_len, sequence.q_first, sequence.q_batch);
  ptx::mbarrier_arrive(mail.full);
}

template <class Config>
__device__ attn::Sequence read_sequence(Mail mail, const ForwardKernelArgs& args, int batch) {
  if constexpr (!Config::Lengths::kPerBatch) {
    return Config::Lengths::sequence(args, batch);
  } else {
    ptx::Chunk words = {};
    if (lane_id() == 0) words = ptx::ld_shared_16(mail.sequence);
    return {of_first_lane(words.x), of_first_lane(words.y),
            of_first_lane(words.z), 0,
            of_first_lane(words.w), 0};
  }
}

// Called by every warp; false after the last tile.
template <class Config>
__device__ bool take_tile(Mail mail, const ForwardKernelArgs& args, Tile& tile,
                          attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(mail.full, parity);  // the next tile is in the mailbox
  // Only the lane that releases the mailbox reads it, so no other lane has to be waited for.
  ptx::Chunk words = {};
  if (lane_id() == 0) words = ptx::ld_shared_16(mail.tile);
  tile = {of_first_lane(words.x), of_first_lane(words.y), of_first_lane(words.z),
          Config::Splits::kParts ? of_first_lane(words.w) : 0};
  sequence = read_sequence<Config>(mail, args, tile.batch);
  if (lane_id() == 0) ptx::mbarrier_arrive(mail.empty);
  return tile.q_block >= 0;
}

}  // namespace fa::sm90
