// SPDX-License-Identifier: Apache-2.0
// What happens to S and P of a warpgroup besides exponentials: the slots Score and Function change S, the slots
// Mask and Function hide P, and dS is multiplied by the slopes of the changed scores. Rows are keys.
#pragma once
#include <fa/attn/user_function.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// A base class: it takes no room if there is nothing to keep.
template <class Config>
class ScoreChange : Slopes<Config> {
  using Score = typename Config::Score;
  using Function = typename Config::Function;
  using Scores = typename Products<Config>::Scores;
  static constexpr bool kAsks = Function::kScores || Function::kMasks;

 protected:
  __device__ explicit ScoreChange(const BackwardKernelArgs& args) : args_(args) {}

  __device__ void begin_heads(Mailbox mail) {
    if (kAsks) head_ = mail.read(Word::kHead);
  }
  __device__ void next_head() {
    if (kAsks) ++head_;
  }

  // S of the keys from `warp_key` of the tile on and the queries from `query` on becomes P = exp2(scale S - lse).
  __device__ void exponentials(Scores& s, Mailbox mail, int warp_key, int query, u32 lse) {
    const float scale = Score::scale(args_);
    Score::change(s, args_);
    if constexpr (Function::kSlopes) {
      Scores slopes;
      Function::slopes(slopes, s, scale, args_, place(mail, warp_key, query));
      this->keep_slopes(
          [&](int j, int e) { return slopes.v[0][j][e] * Score::slope(s.v[0][j][e]); });
    } else {
      this->keep_slopes([&](int j, int e) { return Score::slope(s.v[0][j][e]); });
    }
    if constexpr (Function::kScores)
      Function::template change<attn::RowsOf::kKeys, attn::rows::OneHead>(
          s, scale, args_, place(mail, warp_key, query));
    exponentials_of(s, attn::score_scale<Config>(args_), lse);
  }

  // P or dS becomes zero where a query does not see the key.
  __device__ void hide(Scores& p, Mailbox mail, int warp_key, int query) const {
    backward::hide(p, typename Config::Mask(args_), mail, warp_key, query);
    if constexpr (Function::kMasks)
      Function::template hide<attn::RowsOf::kKeys, attn::rows::OneHead>(
          p, 0.f, args_, place(mail, warp_key, query));
  }

  // dS gets its slopes. Those of hidden scores may be anything.
  __device__ void multiply_slopes(Scores& ds, Mailbox mail, int warp_key, int query, bool hides) {
    Slopes<Config>::multiply_slopes(ds);
    if (Function::kSlopes && hides) hide(ds, mail, warp_key, query);
  }

  const BackwardKernelArgs& args_;

 private:
  __device__ attn::Place place(Mailbox mail, int warp_key, int query) const {
    attn::Sequence sequence = {};
    sequence.q_len = mail.read(Word::kQLen);
    sequence.k_len = mail.read(Word::kKLen);
    return {mail.read(Word::kBatch), head_, query, mail.read(Word::kKeyFirst) + warp_key,
            Function::ahead(args_, sequence)};
  }

  int head_;
};

}  // namespace fa::sm90::backward
