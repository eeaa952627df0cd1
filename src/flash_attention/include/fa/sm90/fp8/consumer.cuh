// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup computes 64 rows of a tile. It offers the verbs that visit_key_blocks and
// Config::Schedule call in order.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/ptx/math.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/shared_memory.cuh>
#include <fa/sm90/fp8/weights.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/verbs.cuh>

namespace fa::sm90::fp8 {

template <class Config_>
class Consumer {
 public:
  using Config = Config_;
  using Mask = typename Config::Mask;
  using Rows = typename Config::Rows;
  using Sums = typename Config::Sums;
  using Range = attn::KeyRange<Mask, Config::kBC>;
  using Scores = Accumulator<kWarpRows, Config::kBC>;
  using P = Weights<Config::kBC>;
  static constexpr int kColumns = Config::kDHead + Sums::kRows;
  using Output = Accumulator<kWarpRows, kColumns>;
  using KOperand = typename Tiles<Config>::KTile::RowOperand;
  using VOperand = typename Tiles<Config>::VTile::Operand;

  __device__ Consumer(const SharedMemory<Config>& smem, const Fp8KernelArgs& args, int warpgroup)
      : smem_(smem),
        args_(args),
        warpgroup_(warpgroup),
        ping_pong_(warpgroup),
        mask_(args),
        k_operand_(smem.k(0).row_operand()),
        v_operand_(smem.v(0).operand()),
        copy_(smem.copy(warpgroup)) {}

  __device__ void run() {
    while (take_tile<Config>(smem_.mail(), args_, tile_, sequence_, mail_parity_)) {
      begin();
      visit_key_blocks<typename Config::Schedule>(*this);
      if (Mask::kHasStart) pass_blocks(unseen_after_);
      store();
    }
  }

  // blocks

  __device__ bool has_block() const { return uniform(block_ >= first_block_); }
  __device__ bool near_end() const {
    return uniform(block_ >= first_block_ && range_.near_end(block_));
  }
  __device__ bool open() const {
    return uniform(block_ >= first_block_ && !range_.near_start(block_));
  }
  __device__ bool near_start() const { return Mask::kHasStart && has_block(); }
  __device__ void next_block() { --block_; }

  // Four warps arrive here before they issue a product.
  __device__ void ping_pong_wait() { ping_pong_.wait(); }

  // operands of the products, in registers and in the current stages

  __device__ Scores& s() { return s_; }
  __device__ P& p() { return p_; }
  __device__ Output& o() { return o_; }
  __device__ KOperand k() const { return k_operand_.after(k_.stage); }
  __device__ VOperand v() const { return v_operand_.after(v_.stage); }

  // Wait until the next K, or the next V, is in its stage.
  __device__ void wait_k() {
    smem_.k_pipeline().wait(k_);
    Config::Pages::arrived();
  }
  __device__ void wait_v() { smem_.v_pipeline().wait(v_); }

  // This warp will not read the stage again. The producer overwrites it when all warps have released it.
  __device__ void release_k() {
    smem_.k_pipeline().release(k_);
    k_.advance();
  }
  __device__ void release_v() {
    smem_.v_pipeline().release(v_);
    v_.advance();
  }
  __device__ void queries_read() {
    q_.end([this] { release_q(); });
  }

  // products

  // S = Q K^T, asynchronously.
  __device__ void issue_scores(Scores& s, KOperand k) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
    q_.issue(s, k);
    ptx::wgmma_commit();
  }
  // O += P V, asynchronously.
  __device__ void issue_accumulate(Output& o, const P& p, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < Config::kBC / kStepKeys; ++n)
      ptx::WgmmaFromRegistersByRows<ptx::E4m3, kColumns>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }
  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  // from S to P

  // Applies the score variant to S, and sets it to -inf where a row does not see the key.
  template <class Block>
  __device__ void mask(Scores& s, Block) {
    Config::Score::change(s, descaled());
    if (Block::kHidden && uniform(range_.hides(block_)))
      attn::hide<Rows, typename Config::Values::KeyOrder>(s, mask_, warp_row(),
                                                          block_ * Config::kBC, sequence_);
  }
  // S becomes P.
  template <class Block>
  __device__ void weigh(P& p, Scores& s, Block block) {
    fp8::weigh<Config>(block, s, p, stats_, factor_);
  }
  // The registers of P in products may be written again. A plain copy would make ptxas wait for every
  // product before the next.
  __device__ void replace(P& p, const P& next) const {
#pragma unroll
    for (int n = 0; n < Config::kBC / kStepKeys; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) p.step[n][e] = next.step[n][e] | args_.zero;
  }

  // O after a block

  __device__ void rescale(Output& o) {
    if (!stats_.grew) return;
    attn::rescale_rows(o, stats_);
    copy_.rescale(stats_);
  }
  __device__ void take_sums(Output& o) { Sums::take(o, stats_, zero()); }
  __device__ void promote(Output& o) { copy_.count(o); }

 private:
  __device__ int warp_row() const { return tile_row() + warp_in_group() * kWarpRows; }
  __device__ int tile_row() const {
    return (tile_.q_block * Config::kConsumers + warpgroup_) * kWarpgroupRows;
  }
  __device__ float zero() const { return __uint_as_float(args_.zero); }

  __device__ void release_q() { smem_.q_pipeline().release(q_ring_); }

  __device__ float descale(const float* factors, const DescaleStrides& stride) const {
    return factors[tile_.batch * stride.batch + tile_.head / args_.heads_per_kv * stride.head];
  }
  // The caller's arguments with the descale factors of Q and K in the softmax scale.
  __device__ CallArgs descaled() const {
    CallArgs call = args_;
    call.softmax_scale = softmax_scale_;
    return call;
  }

  // Reads the scales, clears O and the statistics, waits for Q and skips blocks that only other rows
  // see.
  __device__ void begin() {
    const float descaled_score = descale(args_.q_descale, args_.q_descale_stride) *
                                 descale(args_.k_descale, args_.k_descale_stride);
    v_descale_ = descale(args_.v_descale, args_.v_descale_stride);
    softmax_scale_ = args_.softmax_scale * descaled_score;
    if (softmax_scale_ == 0.f) softmax_scale_ = 0x1p-64f;  // hidden scores stay -inf
    factor_ = {attn::exponential::FusedExp2::factor(Config::Score::scale(descaled()))};
    constexpr int kTileRows = Config::kConsumers * kWarpgroupRows;
    const Range whole(mask_, tile_.q_block * kTileRows, kTileRows, sequence_);
    range_ = Range(mask_, tile_row(), kWarpgroupRows, sequence_);
    first_block_ = range_.first_block();
    unseen_after_ = first_block_ - whole.first_block();
    block_ = range_.end_block() - 1;
    stats_.reset();
    o_.zero();
    copy_.begin();
    smem_.q_pipeline().wait(q_ring_);  // Q has arrived
    mail_parity_ ^= 1;
    __syncwarp();  // the compiler knows that the lanes are together: stages stay in uniform registers
    q_.begin(smem_.q(q_ring_.stage, warpgroup_), warp_in_group() * kWarpRows,
             [this] { release_q(); });
    Config::Values::template clear_tail<Config>(smem_.v(v_.stage), whole, sequence_.k_len,
                                                [this] { wait_v(); });
    pass_blocks(whole.end_block() - range_.end_block());
  }

  __device__ void pass_blocks(int count) {
    pass_unseen<Config, false>(count, [this] {
      wait_k();  // wait first, so that the release lands in this phase
      release_k();
      wait_v();  // V has arrived
      release_v();
    });
  }

  __device__ void store() {
    q_ring_.advance();
    copy_.end(o_);
    const WarpOutput<Widened<Config, kColumns>> warp = {o_, args_, sequence_, tile_, tile_row()};
    store_rows(warp, stats_, Config::Score::scale(descaled()), v_descale_);
  }

  const SharedMemory<Config>& smem_;
  const Fp8KernelArgs& args_;
  const int warpgroup_;
  const ping_pong::Off::Order<Config::kConsumers> ping_pong_;
  const Mask mask_;
  const KOperand k_operand_;  // of the first stage
  const VOperand v_operand_;
  typename Config::Promotion::template Copy<Config::kDHead> copy_;
  typename Config::QueryOperand::template Operand<typename Tiles<Config>::QTile, Config::kDHead> q_;
  Ring<Config::kStages> k_, v_;
  Ring<Config::kQBuffers> q_ring_;
  u32 mail_parity_ = 0;
  Tile tile_;
  attn::Sequence sequence_;
  Range range_;
  int block_, first_block_, unseen_after_;
  float softmax_scale_, v_descale_;
  attn::Factor factor_;
  Scores s_;
  P p_;
  Output o_;
  attn::RowStats<kWarpRows> stats_;
};

}  // namespace fa::sm90::fp8
