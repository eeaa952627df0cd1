// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup computes 64 rows of a tile, by verbs that Config::Schedule calls in order.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/sm90/products.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/verbs.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

template <class Config_>
class Consumer : public Products<Config_>, public KeyWalk<Config_> {
 public:
  using Config = Config_;
  using Math = Products<Config>;
  using typename Math::KOperand, typename Math::QOperand, typename Math::VOperand;
  using typename Math::Output, typename Math::QTile;
  template <int Keys>
  using Scores = typename Math::template Scores<Keys>;
  template <int Keys>
  using Weights = typename Math::template Weights<Keys>;
  using Exponential = typename Config::Exponential;
  using Mask = typename Config::Mask;
  using Rows = typename Config::Rows;
  using Function = typename Config::Function;

  __device__ Consumer(const SharedMemory<Config>& smem, const TensorMaps& maps,
                      const ForwardKernelArgs& args, int warpgroup)
      : smem_(smem),
        maps_(maps),
        args_(args),
        warpgroup_(warpgroup),
        ping_pong_(warpgroup),
        mask_(args),
        dropout_(args),
        max_score_(args),
        factor_{Exponential::factor(attn::score_scale<Config>(args))},
        q_operand_(smem.q(warpgroup).row_operand()),
        k_operand_(smem.k(0).row_operand()),
        v_operand_(smem.v(0).column_operand()) {}

  __device__ __forceinline__ void run() {
    if (Shape<Config>::kRows < kWarpgroupRows) clear_queries<Config>(q_tile(), warpgroup_);
    while (take_tile<Config>(smem_.mail(), args_, tile_, sequence_, tile_parity_)) {
      begin();
      Config::Schedule::run(*this);
      if (KeyWalk<Config>::kHasStart) pass_blocks(unseen_after_);
      store();
    }
    ping_pong_.finish();
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the stores that read it
  }

  __device__ void ping_pong_wait() { ping_pong_.wait(); }
  __device__ void ping_pong_arrive() { ping_pong_.arrive(); }

  // operands of the products, in registers and in the current stages
  __device__ Scores<Config::kBC>& s() { return s_; }
  __device__ Weights<Config::kBC>& p() { return p_; }
  __device__ Output& o() { return o_; }
  __device__ QOperand q() const { return Shape<Config>::uniform(q_operand_); }
  __device__ KOperand k() const { return k_operand_.after(k_.stage); }
  __device__ VOperand v() const { return v_operand_.after(smem_.v_buffer(v_.stage)); }

  // Wait until the next K, or the next V, is in its stage.
  __device__ void wait_k() { smem_.wait_k(k_); }
  __device__ void wait_v() { Config::Roles::template wait_values<Config>(smem_, v_, v_is_there_); }

  // This warp will not read the stage again. The producer overwrites it when all warps have released it.
  __device__ void release_k() {
    Config::Bias::was_read();
    smem_.k_pipeline().release(k_);
    k_.advance();
  }
  __device__ void release_v() {
    Config::Roles::template release_values<Config>(smem_, v_);
    v_is_there_ = false;
    v_.advance();
  }
  __device__ void queries_read() { Config::Output::queries_read(*this); }

  // from S to P
  template <int Keys>  // while S is being computed: which weights are dropped, and the bias
  __device__ void draw(Weights<Keys>& p) {
    dropout_.draw(p.dropped, warp_row(), this->key(), args_);
    bias_.look(smem_, k_.stage);
  }
  // Applies the score variant to S, and sets it to -inf where a row does not see the key.
  template <int Keys, class Block>
  __device__ void mask(Scores<Keys>& s, Block) {
    if (!kSame<Block, attn::FirstMasked> && has_no_query()) return;
    const auto hide_some = [&] {
      if (this->template is_hidden<Block>()) hide(s);
    };
    max_score_.template change<kStale<Config> && !Block::kHidden>(s, [&] { change(s); }, hide_some);
  }
  // S becomes P with the old maxima, if Rescale tries that. It may compute S again, from K.
  template <int Keys, class Block>
  __device__ void try_stale_max(Scores<Keys>& s, Block block) {
    if (has_no_query()) return;
    Config::Rescale::template try_stale_max<Exponential, typename Math::DType>(
        block, s, stats_, factor_, [this](Scores<Config::kBC>& again) { scores_again(again); },
        max_score_);
  }
  // S becomes P if try_stale_max() has not done it.
  template <int Keys, class Block>
  __device__ void softmax(Scores<Keys>& s, Block block) {
    if (has_no_query()) return;
    Config::Rescale::template run<Exponential>(block, s, stats_, factor_);
    if (kStale<Config> && Block::kHidden) max_score_.set_limits(stats_, Math::DType::kLargestSum);
  }
  template <int Keys>
  __device__ void convert(Weights<Keys>& p, const Scores<Keys>& s) const {
    if (!has_no_query()) Math::convert(p, s);
  }
  template <class Block>
  __device__ void rescale(Output& o, Block) {
    if (!kSame<Block, attn::FirstMasked> && stats_.grew) attn::rescale_rows(o, stats_);
  }

  // Clears V beyond the last key, while S is being computed. Consumers whose rows skip the block take part.
  __device__ void clear_tail() {
    if (!Config::Lengths::kPerBatch || !uniform(tail_keys_ > 0 && tail_keys_ < Config::kBC)) return;
    wait_v();  // what is cleared has been loaded
    clear_keys<Config>(smem_.v(v_.stage), tail_keys_);
    tail_keys_ = 0;
  }

  // What Output uses.
  __device__ const TensorMap& o_map() const { return maps_.o; }
  __device__ int warpgroup() const { return warpgroup_; }
  __device__ QTile q_tile() const { return smem_.q(warpgroup_); }
  __device__ QTile own_o_tile() const { return smem_.own_o(warpgroup_); }
  __device__ void release_q() { smem_.q_pipeline().release(warpgroup_); }
  __device__ u32 word() const { return smem_.mail().shared + warpgroup_ * sizeof(u32); }

 private:
  __device__ void scores_again(Scores<Config::kBC>& s) {
    if constexpr (!kScores8Bit<Config>) {
      Math::scores_again(s, q_tile(), warp_in_group() * kWarpRows, smem_.k(k_.stage));
      max_score_.see(s);
      bias_.look(smem_, k_.stage);
      change(s);
    }
  }
  template <class Scores>
  __device__ void change(Scores& s) const {
    Config::Score::change(s, descale_.scaled(args_));
    function_.change(s, Config::Score::scale(descale_.scaled(args_)), args_, place());
  }
  template <class Scores>
  __device__ void hide(Scores& s) const {
    if (!this->is_shown_whole(sequence_))
      attn::hide<Rows>(s, mask_, warp_row(), this->key(), sequence_);
    function_.hide(s, -attn::kInfinity, args_, place());
  }
  __device__ auto place() const {
    return bias_.at(
        {tile_.batch, tile_.head, warp_row(), this->key(), Function::ahead(args_, sequence_)});
  }
  __device__ bool has_no_query() const { return kLeavesRows<Config> && !has_query_; }
  __device__ int warp_row() const { return tile_row() + warp_in_group() * kWarpRows; }
  __device__ int tile_row() const {
    return tile_.q_block * Shape<Config>::kBR + warpgroup_ * Shape<Config>::kRows;
  }
  __device__ float scale() const { return attn::score_scale<Config>(descale_.scaled(args_)); }

  // Waits for Q, clears O and the statistics, and skips blocks that only other rows see.
  __device__ void begin() {
    const auto [whole_first, whole_end] = visited_blocks<Config>(tile_, sequence_, args_);
    range_ = key_range<Config>(tile_, Rows::position(tile_row()),
                               Shape<Config>::kRows / Rows::kGroup, sequence_, args_);
    range_.begin_piece(warpgroup_);
    auto [first, end] = blocks_of<Config>(range_, tile_, args_);
    if (kMayPassAny<Config> && Rows::position(tile_row()) >= sequence_.q_len)
      end = first = whole_first;  // the sequence's queries end before these rows
    unseen_after_ = first - whole_first;
    dropout_.begin_head(tile_.batch * args_.heads + tile_.head);
    function_.begin(args_, place());
    descale_.read(args_, tile_.batch, kv_head<Config>(tile_, args_));
    if (Config::Descale::kPerTile || Function::kScores) factor_ = {Exponential::factor(scale())};
    max_score_.begin(
        tile_.head, [this](int row) { return Rows::position(warp_row() + row) < sequence_.q_len; });
    has_query_ = uniform(Rows::position(warp_row()) < sequence_.q_len);
    if (kLeavesRows<Config>) p_ = {};
    stats_.reset();
    o_.zero();
    smem_.q_pipeline().wait(warpgroup_, tile_parity_);  // Q has arrived
    tile_parity_ ^= 1;
    __syncwarp();  // the compiler knows that the lanes are together: stages stay in uniform registers
    this->begin_walk(first, end);
    tail_keys_ = whole_end > whole_first
                     ? sequence_.k_len - range_.key_block(whole_end - 1) * Config::kBC
                     : 0;
    pass_blocks(whole_end - end);
  }

  __device__ void pass_blocks(int count) {
    pass_unseen<Config, kMayPassAny<Config>>(count, [this] {
      wait_k();  // wait first, so that the release lands in this phase
      release_k();
      ping_pong_wait();  // the others wait for every arrival
      ping_pong_arrive();
      clear_tail();
      wait_v();  // V has arrived
      release_v();
    });
  }

  __device__ void store() {
    const WarpOutput<Config> warp = {o_, args_, sequence_, tile_, tile_row()};
    attn::RowEnds ends(stats_, scale());
    function_.complete(ends, args_, place());
    warp.add_sinks(ends);
    ends.normalise(o_, descale_.of_values() * Config::Dropout::scale(args_));
    Config::Output::store(*this, warp, ends);
  }

  const SharedMemory<Config>& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  const int warpgroup_;
  const typename Config::PingPong::template Order<Config::kConsumers> ping_pong_;
  const Mask mask_;
  typename Config::Dropout dropout_;
  typename Function::template OfQueries<Rows> function_;
  typename Config::MaxScore::template Of<kWarpRows, ForwardKernelArgs, kStale<Config>> max_score_;
  typename Config::Descale::Factors descale_;
  attn::Factor factor_;
  const QOperand q_operand_;
  const KOperand k_operand_;  // of the first stage
  const VOperand v_operand_;
  Ring<Config::kStages> k_, v_;
  bool v_is_there_ = false, has_query_;  // V was waited for; a row of this warp is a query
  u32 tile_parity_ = 0;
  Tile tile_;
  attn::Sequence sequence_;
  using KeyWalk<Config>::range_;
  int unseen_after_;
  int tail_keys_;  // keys of the first block visited, until V beyond them is cleared
  Scores<Config::kBC> s_;
  Weights<Config::kBC> p_;
  Output o_;
  attn::RowStats<kWarpRows> stats_;
  typename Config::Bias::template Of<Config> bias_;
};

}  // namespace fa::sm90
