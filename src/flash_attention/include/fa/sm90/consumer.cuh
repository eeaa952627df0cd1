// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup computes 64 rows of a tile, by verbs that Config::Schedule calls in order.
#pragma once
#include <fa/sm90/products.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/verbs.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

template <class Config_>
class Consumer : public Products<Config_>, public ScoreChange<Config_> {
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
  using Rows = typename Config::Rows;
  using Function = typename Config::Function;

  __device__ Consumer(const SharedMemory<Config>& smem, const TensorMaps& maps,
                      const ForwardKernelArgs& args, int warpgroup)
      : ScoreChange<Config>(args, warpgroup),
        smem_(smem),
        maps_(maps),
        factor_{Exponential::factor(attn::score_scale<Config>(args))} {}

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
  // While S is being computed: which keys these are, and their bias.
  template <class Block>
  __device__ void look_up(Block block) {
    ScoreChange<Config>::look_up(block);
    bias_.look(smem_, k_.stage);
  }
  // Which weights are dropped, while S needs no registers.
  template <int Keys, class Block>
  __device__ void draw(Weights<Keys>& p, Block block) {
    if constexpr (Config::Dropout::kDrops) {
      ScoreChange<Config>::look_up(block);
      dropout_.draw(p.dropped, this->warp_row(), this->key(), args_);
    }
  }
  // Applies the score variant to S, and sets it to -inf where a row does not see the key.
  template <int Keys, class Block>
  __device__ void mask(Scores<Keys>& s, Block) {
    if (!kSame<Block, attn::FirstMasked> && has_no_query()) return;
    const auto hide_some = [&] {
      if (this->template is_hidden<Block>()) this->hide(s);
    };
    max_score_.template change<kStale<Config> && !Block::kHidden>(
        s, [&] { this->template change<Block>(s); }, hide_some);
  }
  // S becomes P with the old maxima, if Rescale tries that. It may compute S again, from K.
  template <int Keys, class Block>
  __device__ void try_stale_max(Scores<Keys>& s, Block block) {
    if (has_no_query()) return;
    Config::Rescale::template try_stale_max<Exponential, typename Math::DType>(
        block, s, stats_, factor_, [this](Scores<Config::kBC>& again) { scores_again(again); },
        max_score_, this->offsets());
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
      this->template change<attn::Masked>(s);
    }
  }
  __device__ bool has_no_query() const { return kLeavesRows<Config> && !has_query_; }

  // Waits for Q, clears O and the statistics, and skips blocks that only other rows see.
  __device__ void begin() {
    const auto [whole_first, whole_end] = visited_blocks<Config>(tile_, sequence_, args_);
    range_ = key_range<Config>(tile_, Rows::position(this->tile_row()),
                               Shape<Config>::kRows / Rows::kGroup, sequence_, args_);
    range_.begin_piece(warpgroup_);
    auto [first, end] = blocks_of<Config>(range_, tile_, args_);
    if (kMayPassAny<Config> && Rows::position(this->tile_row()) >= sequence_.q_len)
      end = first = whole_first;  // the sequence's queries end before these rows
    unseen_after_ = first - whole_first;
    dropout_.begin_head(tile_.batch * args_.heads + tile_.head);
    function_.begin(args_, this->place());
    descale_.read(args_, tile_.batch, kv_head<Config>(tile_, args_));
    if (Config::Descale::kPerTile || Function::kScores)
      factor_ = {Exponential::factor(this->scale())};
    max_score_.begin(tile_.head, [this](int row) {
      return Rows::position(this->warp_row() + row) < sequence_.q_len;
    });
    has_query_ = uniform(Rows::position(this->warp_row()) < sequence_.q_len);
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
    const WarpOutput<Config> warp = {o_, args_, sequence_, tile_, this->tile_row()};
    attn::RowEnds ends(stats_, this->scale());
    function_.complete(ends, args_, this->place());
    warp.add_sinks(ends);
    ends.normalise(o_, descale_.of_values() * Config::Dropout::scale(args_));
    Config::Output::store(*this, warp, ends);
  }

  const SharedMemory<Config>& smem_;
  const TensorMaps& maps_;
  using ScoreChange<Config>::args_, ScoreChange<Config>::warpgroup_;
  using ScoreChange<Config>::tile_, ScoreChange<Config>::sequence_, ScoreChange<Config>::range_;
  using ScoreChange<Config>::descale_, ScoreChange<Config>::function_, ScoreChange<Config>::bias_;
  const typename Config::PingPong::template Order<Config::kConsumers> ping_pong_{warpgroup_};
  typename Config::Dropout dropout_;
  typename Config::MaxScore::template Of<kWarpRows, ForwardKernelArgs, kStale<Config>> max_score_{
      args_};
  attn::Factor factor_;
  const QOperand q_operand_ = smem_.q(warpgroup_).row_operand();
  const KOperand k_operand_ = smem_.k(0).row_operand();  // of the first stage
  const VOperand v_operand_ = smem_.v(0).column_operand();
  Ring<Config::kStages> k_, v_;
  bool v_is_there_ = false, has_query_;  // V was waited for; a row of this warp is a query
  u32 tile_parity_ = 0;
  int unseen_after_;
  int tail_keys_;  // keys of the first block visited, until V beyond them is cleared
  Scores<Config::kBC> s_;
  Weights<Config::kBC> p_;
  Output o_;
  attn::RowStats<kWarpRows> stats_;
};

}  // namespace fa::sm90
