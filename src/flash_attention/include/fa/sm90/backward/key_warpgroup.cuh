// SPDX-License-Identifier: Apache-2.0
// A key warpgroup computes dK and dV of 64 keys, over all blocks of queries that see them. It offers the
// verbs, including those of Products, and Config::Schedule calls them in order. Each warpgroup is
// instantiated by itself, so that its addresses are constants.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

template <class Config_, int Warpgroup>
class KeyWarpgroup : public Products<Config_>, ScoreChange<Config_> {
 public:
  using Config = Config_;
  using Math = Products<Config>;
  using typename Math::Gradient, typename Math::Pairs, typename Math::Scores;
  using KeyGradient = typename GradientOf<Config, Config::kWantsDk>::Type;
  using ValueGradient = typename GradientOf<Config, Config::kWantsDv>::Type;
  using typename Math::KeyTile, typename Math::QueryTile;
  using Smem = SharedMemory<Config>;
  static constexpr int kStages = Config::kStages;
  template <int Stage>
  static constexpr int kAfter = (Stage + 1) % kStages;
  using Derivative = typename Config::Derivative;
  using QuerySide = typename Config::QueryGradient::template KeySide<Config, Warpgroup>;
  // Whether P of keys after the end has to become zero. Their K and V are zero, so that their dS is finite and adds
  // nothing to a dQ that a warpgroup of this kernel computes, and nobody stores their dK and dV. A function may make anything of such
  // scores, and a large dS is infinite in float16.
  static constexpr bool kHidesKeysAfterEnd =
      Config::kQueryWarps == 0 || Config::Function::kScores || Config::Function::kMasks ||
      Config::Mask::kHasStart || !Config::DType::kHasFloatRange;
  static constexpr bool kHides = kHidesKeysAfterEnd || !Config::Mask::kSeesAll;

  __device__ KeyWarpgroup(const TensorMaps& maps, const BackwardKernelArgs& args)
      : ScoreChange<Config>(args), maps_(maps), query_side_(args), dropping_(args) {}

  __device__ __forceinline__ void run() {
    while (take_tile<Config>(tile_, steps_, block_)) {
      query_side_.begin_tile(mail());
      dropping_.begin_tile(mail());
      this->begin_heads(mail());
      dk_.zero();
      dv_.zero();
      Smem::key_pipeline().wait(0, tile_.key_parity(), Smem::kKPart);  // K has arrived
      Smem::key_pipeline().wait(0, tile_.key_parity(), Smem::kVPart);  // V has arrived
      k_.read();
      look_up();
      if (has_block())
        Config::Schedule::run(*this);
      else
        store_dv();
      release(Smem::key_pipeline());
      store(dk_, args_.softmax_scale, args_.dk_sum, maps_.dk,
            {args_.dk, args_.dk_stride, args_.d_qk});
      release(Smem::mail_pipeline(), tile_.mailbox());
      tile_.advance();
    }
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the copies that read it
  }

  // blocks

  __device__ bool has_block() const { return steps_ > 0; }
  // Goes to the next block, if there is one: that of the next head after the last of a head.
  __device__ bool next_block() {
    if (BlockWalk<Config>::next(block_, mail())) {
      query_side_.next_head();
      dropping_.next_head();
      ScoreChange<Config>::next_head(mail());
    }
    --steps_;
    look_up();
    return steps_ > 0;
  }

  // Whether P has to be hidden, because some key of the tile is not seen by all queries of the block.
  __device__ bool hides() const { return kHides && backward::hides(mail(), block_); }

  // operands of the products, in registers and in the current stages

  __device__ Scores& s() { return s_; }
  __device__ Pairs& p() { return p_; }
  __device__ const Pairs& weights() const { return dropping_.weights(p_); }  // P of dV
  __device__ KeyGradient& dk() { return dk_; }
  __device__ ValueGradient& dv() { return dv_; }
  __device__ decltype(auto) k() const { return k_.operand(); }
  static __device__ typename KeyTile::RowOperand v() {
    return rows_of(Smem::v(), Warpgroup).row_operand();
  }
  template <int Stage>
  static __device__ typename QueryTile::RowOperand q() {
    return Smem::q(Stage).row_operand();
  }
  template <int Stage>
  static __device__ typename QueryTile::RowOperand d_o() {
    return Smem::d_o(Stage).row_operand();
  }
  template <int Stage>
  static __device__ typename QueryTile::ColumnOperand q_columns() {
    return Smem::q(Stage).column_operand();
  }
  template <int Stage>
  static __device__ typename QueryTile::ColumnOperand d_o_columns() {
    return Smem::d_o(Stage).column_operand();
  }

  // Wait until the current block's Q, or dO, is in its stage, with its statistics. A round of the stages
  // ends with the dO of the last one.
  template <int Stage>
  __device__ void wait_q() {
    Smem::q_pipeline().wait(Stage, parity_);
  }
  template <int Stage>
  __device__ void wait_d_o() {
    Smem::d_o_pipeline().wait(Stage, parity_);
    if (Stage + 1 == kStages) parity_ ^= 1;
  }

  // This warp will not read the stage again. The producer overwrites it when all warps have released it.
  template <int Stage>
  __device__ void release_q() {
    release(Smem::q_pipeline(), Stage);
  }
  template <int Stage>
  __device__ void release_d_o() {
    release(Smem::d_o_pipeline(), Stage);
  }
  // The producer leaves the stages from `Stage` on empty.
  template <int Stage>
  __device__ void skip_stages() {
#pragma unroll
    for (int stage = Stage; stage < kStages; ++stage) {
      Smem::q_pipeline().wait(stage, parity_);
      Smem::d_o_pipeline().wait(stage, parity_);
      release(Smem::q_pipeline(), stage);
      release(Smem::d_o_pipeline(), stage);
    }
    if (Stage < kStages) parity_ ^= 1;
  }

  // from S to P and from dP to dS

  // Which weights of the block are dropped, while S needs no registers.
  __device__ void draw() { dropping_.draw(mail().read(Word::kKeyFirst) + warp_key(), queries()); }
  // S becomes P = exp2(scale S - lse).
  template <int Stage>
  __device__ void exponentials(Scores& s) {
    ScoreChange<Config>::exponentials(s, mail(), warp_key(), queries(), Smem::lse(Stage));
  }
  // P becomes zero where a query does not see the key.
  __device__ void mask(Scores& s, bool hides) {
    if (hides) this->template hide<kHidesKeysAfterEnd>(s, mail(), warp_key(), queries());
  }
  // P in 16 bits.
  __device__ void convert_probabilities(Pairs& p, const Scores& s) {
    Math::convert_probabilities(p, s);
    dropping_.drop(p);
    kept_.keep(s);
  }
  // P as Derivative needs it, before products read its operand.
  __device__ void keep(const Pairs& p) { kept_.keep(p); }
  // dP becomes dS, or what convert_derivative() makes dS of.
  template <int Stage>
  __device__ void derivative(Scores& s) {
    dropping_.drop_gradients(s);
    Derivative::template run<Math>(s, kept_, Config::Dropout::scale(args_),
                                   [](int j) { return stats_of_lane(Smem::delta(Stage), j); });
    this->multiply_slopes(s, mail(), warp_key(), queries(), hides());
  }
  __device__ void convert_derivative(Pairs& p, const Scores& s) {
    Derivative::template convert<Math>(p, s);
  }

  // dV is complete.
  __device__ void store_dv() {
    store(dv_, Config::Dropout::scale(args_), args_.dv_sum, maps_.dv,
          {args_.dv, args_.dv_stride, args_.d_v});
  }
  // dS leaves for dQ.
  __device__ void hand_over(const Pairs& ds) { query_side_.hand_over(ds, queries() / Config::kBR); }

 private:
  // The first query of the block.
  __device__ int queries() const {
    return (Config::Function::kListed ? query_block<Config>(entry_) : block_) * Config::kBR;
  }
  // Reads the entry of a list long before it is needed, if something depends on where the block is.
  __device__ void look_up() {
    if (Config::Function::kListed && has_block() && (attn::kNeedsPlaces<Config> || hides()))
      entry_ = query_entry<Config>(block_, mail(), args_);
  }
  __device__ Mailbox mail() const { return Smem::mail(tile_); }
  static __device__ int warp_key() {
    return Warpgroup * kWarpgroupRows + warp_in_group() * kWarpRows;
  }
  template <class Pipeline>
  static __device__ void release(Pipeline pipeline, int stage = 0) {
    __syncwarp();  // all lanes have read
    pipeline.release(stage);
  }

  // A gradient of all heads is complete: a warp stages and stores its 16 rows by itself.
  __device__ void store(const Gradient& gradient, float scale, float* sums, const TensorMap& map,
                        const Columns& to) {
    if constexpr (Config::kAddsHeads > 0) return add_sum<Config>(gradient, sums, mail(), Warpgroup);
    if constexpr (Config::kSplitsHeads > 0) return store_sum(gradient, sums, mail(), Warpgroup);
    const int row = mail().read(Word::kKeyFirst) + warp_key();
    if (lane_id() == 0) ptx::tma_wait_read();  // the rows before were read
    __syncwarp();                              // all lanes may write over them
    stage_rows<typename Config::DType>(gradient, scale, Smem::gradient(), warp_key());
    store_staged<Config::Lengths::kPerBatch>(
        Smem::gradient(), warp_key(), mail().read(Word::kKLen) - row, map,
        {to, mail().read(Word::kKFirst) + row, mail().read(Word::kKvHead),
         mail().read(Word::kKBatch)});
  }

  __device__ void store(NoGradient, float, float*, const TensorMap&, const Columns&) {}

  using ScoreChange<Config>::args_;
  const TensorMaps& maps_;
  QuerySide query_side_;
  typename Config::Dropping::template Of<Config> dropping_;
  typename Config::KeyOperand::template Of<Config, Warpgroup> k_;
  u32 parity_ = 0;  // of the barriers of Q and dO, in this round of the stages
  TileCount tile_;
  int steps_, block_;
  u32 entry_;  // of the block in a list
  Scores s_;
  Pairs p_;
  KeyGradient dk_;
  ValueGradient dv_;
  typename Derivative::template Kept<Math> kept_;
};

}  // namespace fa::sm90::backward
