// SPDX-License-Identifier: Apache-2.0
// The order in which all warps go through the blocks of queries that visit a tile. Where tiles take
// turns at a block, the last block comes first: under a causal mask all tiles visit it.
#pragma once
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

template <class Config>
struct BlockWalk {
  static constexpr bool kLastFirst = Config::kWriterWarps > 0;

  // The first block, and the next one. After the last block of a head comes its first one again, and
  // next() returns true.
  static __device__ int start(Mailbox mail) {
    return kLastFirst ? mail.read(Word::kEndBlock) - 1 : mail.read(Word::kFirstBlock);
  }
  static __device__ bool next(int& block, Mailbox mail) {
    const int end = mail.read_alone(kLastFirst ? Word::kFirstBlock : Word::kEndBlock);
    if (kLastFirst ? --block >= end : ++block < end) return false;
    block = kLastFirst ? mail.read_alone(Word::kEndBlock) - 1 : mail.read_alone(Word::kFirstBlock);
    return true;
  }
  // The n-th of the blocks from `first` to `end`, with n from `first` on.
  static __device__ int nth(int n, int first, int end) {
    return kLastFirst ? first + end - 1 - n : n;
  }
};

}  // namespace fa::sm90::backward
