// SPDX-License-Identifier: Apache-2.0
// A tile's share of dQ of a block of queries. Tiles add their shares in the order of their keys: the
// first one stores it, and the last one adds all others to its own and stores dQ.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward {

struct Share {
  int rank;  // shares that are added before it
  bool last;

  __device__ bool first() const { return rank == 0; }

  // As a word of the mailbox.
  __device__ int bits() const { return 2 * first() + last; }
  static __device__ bool is_first(int bits) { return bits & 2; }
  static __device__ bool is_last(int bits) { return bits & 1; }
};

// The share of the tile in the mailbox, whose tile visits the block.
template <class Config>
__device__ Share share_of(Mailbox mail, const BackwardKernelArgs& args, int block) {
  attn::Sequence sequence = {};
  sequence.q_len = mail.read_alone(Word::kQLen);
  sequence.k_len = mail.read_alone(Word::kKLen);
  const attn::KeyRange<typename Config::Mask, Config::kBC> tiles(
      typename Config::Mask(args), block * Config::kBR, Config::kBR, sequence);
  const int tile = mail.read_alone(Word::kKeyFirst) / Config::kBC;
  return {tile - tiles.first_block(), tile + 1 == tiles.end_block()};
}

}  // namespace fa::sm90::backward
