// SPDX-License-Identifier: Apache-2.0
// Dropout in a backward kernel: the operand of dV has zeros, and dP is scaled or zero.
#pragma once
#include <fa/attn/dropout.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// The first of the heads of a tile, among those of all sequences.
__device__ inline int first_head_of_all(Mailbox mail, const BackwardKernelArgs& args) {
  return args.part_head * args.heads_per_kv + mail.read(Word::kPartHead);
}

// The decisions on a warp's 16 keys and the queries of a block.
template <class Config>
using DroppedOfBlock =
    typename Config::Dropout::template Dropped<attn::RowsOf::kKeys, Config::kBR / 16>;

// P stays as it is, since dS needs all of it, and the operand of dV takes registers of its own. `Draws` draws
// the decisions on a block, or reads them.
template <class Config, class Draws>
class OperandFrom : public Draws {
  using Pairs = typename Products<Config>::Pairs;
  using Scores = typename Products<Config>::Scores;
  static constexpr int kTiles = Config::kBR / 16;

 public:
  using Draws::Draws;

  // From these on.
  __device__ void draw(int key, int query) { Draws::draw(dropped_, key, query); }

  // The operand of dV, without its scale.
  __device__ void drop(const Pairs& p) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) weights_.step[n][e] = p.step[n][e];
      dropped_.clear(weights_.step[n], n);
    }
  }
  __device__ const Pairs& weights(const Pairs&) const { return weights_; }

  // dP of weights that are dropped becomes zero.
  __device__ void drop_gradients(Scores& dp) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          float& x = dp.v[0][2 * n + e / 2][e % 2 * 2 + word];
          x = dropped_.kept(x, n, e, word);
        }
  }

 private:
  DroppedOfBlock<Config> dropped_;
  Pairs weights_;
};

// Each warp draws for itself.
template <class Config>
class OwnDraws {
 public:
  __device__ explicit OwnDraws(const BackwardKernelArgs& args) : args_(args), dropout_(args) {}
  __device__ void begin_tile(Mailbox mail) { dropout_.begin_head(first_head_of_all(mail, args_)); }
  __device__ void next_head() { dropout_.next_head(); }

 protected:
  __device__ void draw(DroppedOfBlock<Config>& dropped, int key, int query) const {
    dropout_.draw(dropped, key, query, args_);
  }

 private:
  const BackwardKernelArgs& args_;
  typename Config::Dropout dropout_;
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::dropping {

struct Operand : NoDrawers {
  template <class Config>
  using Of = OperandFrom<Config, OwnDraws<Config>>;
};

}  // namespace fa::sm90::backward::dropping
