// SPDX-License-Identifier: Apache-2.0
// Dropout in a backward kernel: the operand of dV has zeros, and dP is scaled or zero.
#pragma once
#include <fa/attn/dropout.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward::dropping {

// P stays as it is, since dS needs all of it, and the operand of dV takes registers of its own.
struct Operand {
  template <class Config>
  class Of {
    using Dropout = typename Config::Dropout;
    using Pairs = typename Products<Config>::Pairs;
    using Scores = typename Products<Config>::Scores;
    static constexpr int kTiles = Config::kBR / 16;

   public:
    __device__ explicit Of(const BackwardKernelArgs& args) : args_(args) {}

    __device__ void begin_tile(Mailbox mail) {
      dropout_.begin_head(args_.part_head * args_.heads_per_kv + mail.read(Word::kPartHead));
    }
    __device__ void next_head() { dropout_.next_head(); }
    // The decisions on a warp's 16 keys from `key` on, and the queries of a block.
    __device__ void draw(int key, int query) { dropout_.draw(dropped_, key, query, args_); }

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
    const BackwardKernelArgs& args_;
    Dropout dropout_;
    typename Dropout::template Dropped<attn::RowsOf::kKeys, kTiles> dropped_;
    Pairs weights_;
  };
};

}  // namespace fa::sm90::backward::dropping
