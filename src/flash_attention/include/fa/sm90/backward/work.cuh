// SPDX-License-Identifier: Apache-2.0
// The work of a tile: which blocks of queries visit its keys. The producer posts it in a mailbox in
// shared memory, where it stays until all warps are done with the tile, so nobody keeps it in registers.
// There are two mailboxes, so that a tile can be posted before the tile before it is done.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm90::backward {

enum class Word : int {
  kKeyFirst,    // of the tile, or kNoMoreTiles
  kKvHead,      // head of k and v
  kPartHead,    // this head among those of the part, over all sequences
  kSteps,       // query blocks of all heads that share it
  kFirstBlock,  // query blocks of a head: the first and the end,
  kEndBlock,
  kOpenFirst,  // and those from here
  kOpenEnd,    // to here need no mask
  kQLen,
  kKLen,
  kStatFirst,  // row of the sequence in lse_log2, delta and dq_sum
  kKFirst,     // row of the sequence in k and v
  kKBatch,
  kQFirst,  // row of the sequence in dq
  kQBatch,
  kShare,  // of dQ of the block whose sum is staged: Share bits
  kCount = 16
};

inline constexpr int kNoMoreTiles = -1;

inline constexpr int kMailboxes = 2;

// The number of tiles that a CTA has begun. Tiles alternate between the mailboxes, and all of them have
// K and V in the same buffers.
struct TileCount {
  u32 tiles = 0;

  __device__ void advance() { ++tiles; }
  __device__ int mailbox() const { return tiles % kMailboxes; }
  // Of the phases of the barriers of this tile's mailbox, and of those of K and V.
  __device__ u32 mail_parity() const { return tiles / kMailboxes % 2; }
  __device__ u32 key_parity() const { return tiles % 2; }
};

struct Mailbox {
  static constexpr int kBytes = static_cast<int>(Word::kCount) * 4;
  u32 address;

  __device__ void write(Word word, int x) const {
    ptx::st_shared_4(address + static_cast<int>(word) * 4, static_cast<u32>(x));
  }
  // The word is the same in all lanes. The shuffle tells the compiler.
  __device__ int read(Word word) const { return __shfl_sync(~0u, read_alone(word), 0); }
  __device__ int read_alone(Word word) const {
    return static_cast<int>(ptx::ld_shared_4(address + static_cast<int>(word) * 4));
  }
};

}  // namespace fa::sm90::backward
