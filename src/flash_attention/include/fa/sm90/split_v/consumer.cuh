// SPDX-License-Identifier: Apache-2.0
// Two consumer warpgroups share the rows of a tile, because O is too large for the registers of one. Each
// has half of O's columns. They take turns with the blocks: one computes S and P of a block, writes P to
// shared memory, and both multiply it with their half of V. The running maxima go along with P. The verbs
// here are those of the exchange; the kernel's own consumer, `Own`, adds those of its K and V, and a
// schedule calls them in order.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/split_v/rows.cuh>
#include <fa/sm90/split_v/shared_memory.cuh>
#include <fa/sm90/verbs.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::split_v {

// The config of a warp's output, which has half of the columns.
template <class Config>
struct HalfOutput : Config {
  static constexpr int kDHead = Config::kDV / kHalves;
};

// Own::run_blocks() computes the blocks of a tile.
template <class Own, class Config_, class Math_, class Memory>
class Consumer : public Math_ {
 public:
  using Config = Config_;
  using Math = Math_;
  using typename Math::Output, typename Math::POperand, typename Math::Scores,
      typename Math::Weights;
  using Exponential = typename Config::Exponential;
  using Mask = typename Config::Mask;
  using Rows = typename Config::Rows;
  using Range = attn::KeyRange<Mask, Config::kBC>;

  __device__ Consumer(const Memory& smem, const ForwardKernelArgs& args, int half)
      : smem_(smem),
        args_(args),
        half_(half),
        ping_pong_(half),
        mask_(args),
        factor_{Exponential::factor(Config::Score::scale(args))} {}

  __device__ void run() {
    while (take_tile<Config>(smem_.mail(), args_, tile_, sequence_, tile_parity_)) {
      begin();
      static_cast<Own&>(*this).run_blocks();
      smem_.q_pipeline().release(0);
      store();
    }
  }

  // blocks

  __device__ bool has_block() const { return uniform(block_ >= first_block_); }
  __device__ bool has_next_block() const { return uniform(block_ > first_block_); }
  // Whether this warpgroup computes the scores of the block.
  __device__ bool owns_block() const { return uniform(ring_.stage == half_); }
  __device__ void next_block() {
    ring_.advance();
    --block_;
  }
  __device__ Ring<kStages> ring() const { return ring_; }
  __device__ Ring<kStages> next_ring() const {
    Ring<kStages> next = ring_;
    next.advance();
    return next;
  }

  // operands of the products that are in registers

  __device__ Scores& s() { return s_; }
  __device__ Weights& p() { return p_; }
  __device__ Output& o() { return o_; }

  // Four warps arrive here before they issue products.
  __device__ void ping_pong_wait() { ping_pong_.wait(); }

  // a block of this warpgroup

  // S becomes P, relative to maxima that are not below those of the blocks before.
  __device__ void softmax(Scores& s, Weights& p) {
    Config::Score::change(s, args_);
    if (uniform(range_.hides(block_)))
      attn::hide<Rows>(s, mask_, warp_row(), block_ * Config::kBC, sequence_);
    Config::Rescale::template run<Exponential>(attn::Masked{}, s, stats_, factor_);
    Math::convert(p, s);
  }
  // Gives P and the maxima to the other warpgroup.
  __device__ void write_weights(const Weights& p) {
    Math::write(smem_.p(half_), warp_in_group() * kWarpRows, p);
    ptx::st_shared_8(smem_.maxima(half_), {stats_.max[0][0], stats_.max[0][1]});
    ptx::fence_proxy_async();  // products see what this lane wrote
    __syncwarp();              // and what all lanes wrote
    smem_.p_pipeline().commit(half_);
  }
  __device__ void rescale(Output& o) {
    if (stats_.grew) attn::rescale_rows(o, stats_);
  }

  // a block of the other warpgroup

  // Waits until P and its maxima are written.
  __device__ void wait_weights() { smem_.p_pipeline().wait(ring_); }
  // O becomes relative to the maxima of the other warpgroup.
  __device__ void follow_maxima(Output& o) {
    const ptx::FloatPair theirs = ptx::ld_shared_8(smem_.maxima(ring_.stage));
    const float max[2] = {theirs.x, theirs.y};
    stats_.grew = __any_sync(~0u, max[0] != stats_.max[0][0] || max[1] != stats_.max[0][1]);
    if (!stats_.grew) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      attn::set_max<Exponential>(stats_, h, max[h], factor_.exact);
      if (!Exponential::precise(Exponential::offset(max[h], factor_.exact)) &&
          max[h] != -attn::kInfinity)
        factor_.stale = attn::kInfinity - attn::kInfinity;  // the next block subtracts it first
    }
    attn::rescale_rows(o, stats_);
  }

 protected:
  // V beyond the last key is undefined, so it is cleared, by this warpgroup.
  template <class VTile>
  __device__ void clear_tail(VTile tile) {
    const int keys = sequence_.k_len - block_ * Config::kBC;
    if (!Config::Lengths::kPerBatch || !uniform(keys < Config::kBC)) return;
    clear_rows<kWarpgroupSize>(tile, keys, threadIdx.x % kWarpgroupSize);
    sync_warpgroup(half_);  // all four warps have stored their zeros
  }

  const Memory& smem_;
  const ForwardKernelArgs& args_;
  const int half_;  // of O's columns; it is the warpgroup's number, too
  Ring<kStages> ring_;

 private:
  __device__ int warp_row() const { return first_row<Config>(tile_) + warp_in_group() * kWarpRows; }

  // Waits for Q, and clears O and the statistics.
  __device__ void begin() {
    range_ = key_range<Config>(tile_, mask_, sequence_);
    const int index = tile_index<Config>(tile_, args_);
    first_block_ = Config::Splits::first_block(range_, index, tile_.split, args_);
    block_ = Config::Splits::end_block(range_, index, tile_.split, args_) - 1;
    stats_.reset();
    o_.zero();
    smem_.q_pipeline().wait(0, tile_parity_);  // Q has arrived
    tile_parity_ ^= 1;
  }

  // Both warpgroups have the same maxima. Each has summed its own blocks.
  __device__ void add_sums() {
    ptx::st_shared_8(smem_.sums(half_), {stats_.sum[0][0], stats_.sum[0][1]});
    sync_halves();  // both have written their sums
    const ptx::FloatPair theirs = ptx::ld_shared_8(smem_.sums(1 - half_));
    stats_.sum[0][0] += theirs.x;
    stats_.sum[0][1] += theirs.y;
    sync_halves();  // both have read them
  }
  static __device__ void sync_halves() {
    ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers), kHalves * kWarpgroupSize);
  }

  __device__ void store() {
    add_sums();
    const WarpOutput<HalfOutput<Config>> warp = {
        o_, args_, sequence_, tile_, first_row<Config>(tile_), half_ * Math::kHalfColumns};
    const attn::RowEnds ends = warp.ends(stats_, Config::Score::scale(args_));
    ends.normalise(o_);
    Config::Output::store(*this, warp, ends);
  }

  const ping_pong::Off::Order<kHalves> ping_pong_;
  const Mask mask_;
  attn::Factor factor_;
  u32 tile_parity_ = 0;
  Tile tile_;
  attn::Sequence sequence_;
  Range range_;
  int block_, first_block_;
  Scores s_;
  Weights p_;
  Output o_;
  attn::RowStats<kWarpRows> stats_;
};

}  // namespace fa::sm90::split_v
