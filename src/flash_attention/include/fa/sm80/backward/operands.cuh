// SPDX-License-Identifier: Apache-2.0
// The slot Operands: where P and dS of a block are between two products.
#pragma once

namespace fa::sm80::backward::operands {

// P and dS stay in the registers of the warp that computed them: the lane map of an accumulator is that
// of the left operand of the next product.
struct Registers {
  static constexpr bool kStoresP = false;

  template <class Block, class Place>
  static __device__ void run(Block& b, int stage, const Place& place) {
    b.scores(stage, place);
    b.d_probabilities(stage);
    b.weigh(stage, place);
    b.store_ds();
    b.add_p(stage, [&](u32(&a)[4], int i, int n) { b.p_fragment(a, i, n); });
    b.add_ds(stage, [&](u32(&a)[4], int i, int n) { b.ds_fragment(a, i, n); });
  }
};

// P and dS go through shared memory: warps that have different columns of S can have the same rows of
// the sums.
struct Shared {
  static constexpr bool kStoresP = true;

  template <class Block, class Place>
  static __device__ void run(Block& b, int stage, const Place& place) {
    b.scores(stage, place);
    b.d_probabilities(stage);
    b.weigh(stage, place);
    b.store_p();
    b.store_ds();
    b.meet_rows();  // P and dS of the warp's rows are in shared memory
    b.add_p(stage, [&](u32(&a)[4], int i, int n) { b.read_p(a, i, n); });
    b.add_ds(stage, [&](u32(&a)[4], int i, int n) { b.read_ds(a, i, n); });
  }
};

}  // namespace fa::sm80::backward::operands
