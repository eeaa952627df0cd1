// SPDX-License-Identifier: Apache-2.0
// One CTA computes one block of query rows of one head. Block holds its state and offers the verbs;
// Config binds the slots; Config::Schedule says in which order the verbs run.
//
// Shared memory: Q [kBR][kDHead], K [kBC][kDHead], V [kBC][kDHead].
// Registers, per warp: S [kWarpRows][kBC], O [kWarpRows][kDHead] as fp32 accumulators.
#pragma once
#include <fa/attn/kv_order.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/dtype.cuh>
#include <fa/forward_args.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm80/function.cuh>
#include <fa/sm80/load.cuh>
#include <fa/sm80/mma.cuh>
#include <fa/sm80/predication.cuh>
#include <fa/sm80/tile.cuh>

namespace fa::sm80 {

// Fails to compile at the first slot of `Config` whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::check_slots<Config>());
  static_assert(
      attn::MaxScoreSlot<typename Config::MaxScore, ForwardKernelArgs>,
      "MaxScore: Of<Rows, Args, Stale>(args) with begin(head, used), change<Unseen>(s, change, "
      "hide), see(s), set_limits(block, most), limit(i, h, most), see_weights(p, block, most)");
  static_assert(CacheSlot<typename Config::Cache>,
                "Cache: load_async, load_async_or_zero, load, store");
  static_assert(CopySlot<typename Config::Copy, typename Config::Cache>,
                "Copy: chunk<Cache>(smem, gmem), chunk_or_zero<Cache>, commit(), wait<Pending>()");
  static_assert(LayoutSlot<typename Config::Layout>,
                "Layout: place(row, chunk), advance(address, bytes)");
  static_assert(PanelsSlot<typename Config::Panels>, "Panels: kChunks<DHead>");
  static_assert(QFragmentLoadsSlot<typename Config::QFragmentLoads>,
                "QFragmentLoads: hold, begin, before");
  static_assert(FragmentLoadsSlot<typename Config::KFragmentLoads>,
                "KFragmentLoads: begin<Steps>(read), before<Steps>");
  static_assert(FragmentLoadsSlot<typename Config::VFragmentLoads>,
                "VFragmentLoads: begin<Steps>(read), before<Steps>");
  static_assert(MmaOrderSlot<typename Config::MmaOrder>, "MmaOrder: run<Rows, Cols>(mma)");
  static_assert(attn::NormaliseSlot<typename Config::Normalise>, "Normalise: row(o, i, h, sum)");
  static_assert(PredicationSlot<typename Config::Predication, Config>,
                "Bounds: Scope<Config> of the rows and steps of a CTA");
  static_assert(attn::KvOrderSlot<typename Config::KvOrder>, "KvOrder: block(step, num_steps)");
  static_assert(RowStrideSlot<typename Config::RowStride>, "RowStride: elements(from_args)");
  return true;
}

template <class Config_>
class Block {
 public:
  using Config = Config_;
  using DType = typename Config::DType;
  static constexpr int kWarpRows = Config::kBR / Config::kNWarps;
  using QTile = Tile<Config, Config::kBR>;
  using KVTile = Tile<Config, Config::kBC>;
  static_assert(Config::kSmemBytes == QTile::kBytes + 2 * KVTile::kBytes,
                "the host gives a CTA as much shared memory as its tiles take");
  using Scope = typename Config::Predication::template Scope<Config>;
  template <class AnyTile>
  using Cursor = typename Config::Address::template Cursor<AnyTile>;

  // A lane cursor names the row and chunk its lane gives to ldmatrix.x4. The four matrices it reads:
  //   Q: rows 0-7 and 8-15 of the low 8 dims, then of the high 8: one A operand
  //   K: the low and high 8 dims of keys 0-7, then of keys 8-15: two B operands
  //   V: keys 0-7 and 8-15 of the low 8 dims, then of the high 8: transposed, two B operands
  __device__ Block(const ForwardKernelArgs& args, u32 smem)
      : scope_(args),
        max_score_(args),
        q_tile_(smem),
        k_tile_(q_tile_ + QTile::kBytes),
        v_tile_(k_tile_ + KVTile::kBytes),
        q_lane_(q_tile_, warp_row() + lane_id() % 16, lane_id() / 16),
        k_lane_(k_tile_, lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2),
        v_lane_(v_tile_, lane_id() % 16, lane_id() / 16) {
    dropout_.begin_head(blockIdx.z * args.heads + blockIdx.y);
    max_score_.begin(blockIdx.y,
                     [this](int row) { return scope_.q().has(first_warp_row() + row, 0); });
    function_.begin(args, scope_.place(first_warp_row(), 0));
  }

  __device__ bool empty() const { return scope_.empty(); }
  __device__ int num_steps() const { return scope_.num_steps(); }

  // global -> shared

  __device__ void load_q() { load_tile<Config, QTile>(q_tile_, scope_.q(), scope_.first_row()); }
  __device__ void load_k(int step) {
    load_tile<Config, KVTile>(k_tile_, scope_.k(), scope_.key(step));
  }
  __device__ void load_v(int step) {
    load_tile<Config, KVTile>(v_tile_, scope_.v(), scope_.key(step));
  }
  __device__ void commit() { Config::Copy::commit(); }
  template <int Pending>
  __device__ void wait() {
    Config::Copy::template wait<Pending>();
  }

  // shared -> registers -> tensor cores

  __device__ void reset() {
    stats_.reset();
    o_acc_.zero();
  }
  __device__ void hold_q() {
    Config::QFragmentLoads::template hold<kDimSteps>([&](int d) { read_q(d); });
  }

  __device__ void scores() {  // S = Q K^T
    u32 k[kDimSteps][Config::kBC / 16][4];
    const auto read_q_step = [&](int d) { read_q(d); };
    const auto read_k_step = [&](int d) {
#pragma unroll
      for (int n = 0; n < Config::kBC / 16; ++n)
        ptx::ldmatrix_x4(k[d][n], k_lane_.at(16 * n, 2 * d));
    };
    s_acc_.zero();
    Config::QFragmentLoads::template begin<kDimSteps>(read_q_step);
    Config::KFragmentLoads::template begin<kDimSteps>(read_k_step);
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d) {
      Config::QFragmentLoads::template before<kDimSteps>(d, read_q_step);
      Config::KFragmentLoads::template before<kDimSteps>(d, read_k_step);
      Config::MmaOrder::template run<kWarpRows / 16, Config::kBC / 8>([&](int i, int j) {
        mma<DType>(s_acc_.v[i][j], q_regs_[i][d], k[d][j / 2][j % 2 * 2],
                   k[d][j / 2][j % 2 * 2 + 1]);
      });
    }
  }

  __device__ void mask(int step) {  // after the score variant, and draw which weights are dropped
    max_score_.template change<false>(
        s_acc_,
        [&] {
          Config::Score::change(s_acc_, scope_.args());
          function_.change(s_acc_, scope_.args(), scope_.place(first_warp_row(), step));
        },
        [&] {
          scope_.hide(s_acc_, first_warp_row(), scope_.key(step));
          if (scope_.function_hides(step))
            function_.hide(s_acc_, scope_.args(), scope_.place(first_warp_row(), step));
        });
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i)
      dropout_.draw(dropped_[i], first_warp_row() + 16 * i, scope_.key(step), scope_.args());
  }

  template <class Form>
  __device__ void softmax(Form form) {
    using Exponential = typename Config::Exponential;
    attn::softmax<Exponential>(form, s_acc_, o_acc_, stats_,
                               Exponential::factor(attn::score_scale<Config>(scope_.args())));
  }

  __device__ void accumulate() {  // O += P V
    constexpr int kKeySteps = Config::kBC / 16;
    u32 v[kKeySteps][kDimSteps][4];
    const auto read_v_step = [&](int n) {
#pragma unroll
      for (int d = 0; d < kDimSteps; ++d)
        ptx::ldmatrix_x4_trans(v[n][d], v_lane_.at(16 * n, 2 * d));
    };
    Config::VFragmentLoads::template begin<kKeySteps>(read_v_step);
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n) {
      Config::VFragmentLoads::template before<kKeySteps>(n, read_v_step);
      u32 p[kWarpRows / 16][4];
      convert_p(p, n);
      Config::MmaOrder::template run<kWarpRows / 16, Config::kDHead / 8>([&](int i, int j) {
        mma<DType>(o_acc_.v[i][j], p[i], v[n][j / 2][j % 2 * 2], v[n][j / 2][j % 2 * 2 + 1]);
      });
    }
  }

  // registers -> global

  __device__ void store() {
    function_.complete(stats_, scope_.args(), scope_.place(first_warp_row(), 0));
    scope_.finish(o_acc_, stats_, first_warp_row());
    Config::Store::run(*this);
  }

  // What a Store uses. Rows count from the warp's first row.
  __device__ u32 q_tile() const { return q_tile_; }
  __device__ char* output(int row) const {
    return const_cast<char*>(scope_.o().address(first_warp_row() + row));
  }
  __device__ i64 output_row_bytes() const { return scope_.o().row_bytes(); }
  __device__ bool has_output(int row, int chunk) const {
    return scope_.o().has(first_warp_row() + row, chunk);
  }
  __device__ u32 output_pair(int i, int j, int h) const {
    return DType::pack(o_acc_.v[i][j][2 * h], o_acc_.v[i][j][2 * h + 1]);
  }
  static __device__ int warp_row() { return warp_id() * kWarpRows; }

 private:
  static constexpr int kDimSteps = Config::kDHead / 16;

  __device__ int first_warp_row() const { return scope_.first_row() + warp_row(); }

  __device__ void read_q(int d) {
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i)
      ptx::ldmatrix_x4(q_regs_[i][d], q_lane_.at(16 * i, 2 * d));
  }

  // Columns 16 n .. 16 n + 15 of P as the A operand.
  __device__ void convert_p(u32 (&p)[kWarpRows / 16][4], int n) const {
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      pack_operand<DType>(p[i], s_acc_.v[i], n);
      dropped_[i].clear(p[i], n);
    }
  }

  const Scope scope_;
  [[no_unique_address]] typename Config::Dropout dropout_;
  [[no_unique_address]]
  typename Config::MaxScore::template Of<kWarpRows, ForwardKernelArgs, false> max_score_;
  const u32 q_tile_, k_tile_, v_tile_;
  const Cursor<QTile> q_lane_;
  const Cursor<KVTile> k_lane_, v_lane_;
  u32 q_regs_[kWarpRows / 16][kDimSteps][4];
  Accumulator<kWarpRows, Config::kBC> s_acc_;
  Accumulator<kWarpRows, Config::kDHead> o_acc_;
  attn::RowStats<kWarpRows> stats_;
  typename Config::Dropout::template Dropped<attn::RowsOf::kQueries, Config::kBC / 16>
      dropped_[kWarpRows / 16];
  WarpFunction<Config, attn::RowsOf::kQueries, kWarpRows> function_;
};

template <class Config>
__device__ void forward(const ForwardKernelArgs& args, const void* smem) {
  static_assert(check_slots<Config>());
  Block<Config> block(args, ptx::smem_address(smem));
  if (block.empty()) return;
  Config::Loop::template run<typename Config::Schedule>(block);
  block.store();
}

}  // namespace fa::sm80
