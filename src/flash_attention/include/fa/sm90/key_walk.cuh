// SPDX-License-Identifier: Apache-2.0
// How the rows of a warpgroup go through key blocks: from the last one that they see to the first, or through
// the list of their tile.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

template <class Config>
class KeyWalk {
  using Function = typename Config::Function;
  using Mask = typename Config::Mask;

 public:
  __device__ bool has_block() const { return uniform(block_ >= first_block_); }
  __device__ bool near_end() const {
    return uniform(block_ >= first_block_ && (kHidesEverywhere || range_.near_end(block_)));
  }
  __device__ bool open() const {
    return uniform(block_ >= first_block_ && !range_.near_start(block_));
  }
  __device__ bool near_start() const { return Mask::kHasStart && has_block(); }
  template <int Keys>
  __device__ bool first_block_within() const {
    return uniform(block_ >= first_block_ && range_.end_last - key() <= Keys);
  }
  __device__ void next_block() {
    --block_;
    look_up();
  }

 protected:
  using Range = decltype(key_range<Config>(Tile{}, attn::Sequence{}, ForwardKernelArgs{}));

  __device__ void begin_walk(int first, int end) {
    first_block_ = first;
    block_ = end - 1;
    look_up();
  }

  // The first key of the block.
  __device__ int key() const { return Function::kListed ? listed_key_ : block_ * Config::kBC; }
  // Whether some row does not see some key of a block of this kind.
  template <class Block>
  __device__ bool is_hidden() const {
    if (kSame<Block, attn::FirstMasked>) return true;
    return Block::kHidden && (kHidesEverywhere || uniform(range_.hides(block_)));
  }

  Range range_;
  int block_, first_block_;

 private:
  // A mask function without lists may hide keys of every block.
  static constexpr bool kHidesEverywhere = Function::kMasks && !Function::kListed;

  // The entry of a list is read while the products before it run.
  __device__ void look_up() {
    if (Function::kListed && has_block()) listed_key_ = range_.key_block(block_) * Config::kBC;
  }

  int listed_key_;
};

}  // namespace fa::sm90
