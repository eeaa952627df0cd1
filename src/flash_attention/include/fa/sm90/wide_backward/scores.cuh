// SPDX-License-Identifier: Apache-2.0
// The kernel of P and dS for wide heads. S = Q K^T and then dP = dO V^T are added up over slices of 64
// columns, which warpgroup 0 loads. Two more have 64 queries each; S, P in 16 bits and dP take turns in
// their registers. P^T and dS^T leave for the workspace, in panels of 64 keys and 64 queries.
#pragma once
#include <fa/dtype.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/wide_backward/score_producer.cuh>
#include <fa/sm90/wide_backward/score_tile.cuh>

namespace fa::sm90::wide_backward {

template <class Config>
class ScoreConsumer {
  using Smem = ScoreMemory<Config>;
  using DType = typename Config::DType;
  using Score = typename Config::Score;
  static constexpr int kSteps = kTileKeys / 16;

 public:
  __device__ ScoreConsumer(const BackwardKernelArgs& args, int warpgroup)
      : args_(args), warpgroup_(warpgroup) {}

  __device__ void run() {
    ScoreTile tile;
    ScoreWalk<Config> walk(args_);
    while (walk.next(tile)) {
      multiply(args_.d_qk);  // S = Q K^T
      probabilities(tile);   // S becomes P, which leaves
      multiply(args_.d_v);   // dP = dO V^T
      derivatives(tile);     // dP becomes dS, which leaves
    }
    if (leads()) ptx::tma_wait();  // shared memory outlives the stores that read it
  }

 private:
  static __device__ bool leads() { return threadIdx.x % kWarpgroupSize == 0; }

  // Two slices at a time. No product runs over the end of an iteration, or ptxas would serialise them.
  __device__ void multiply(int columns) {
    x_.zero();
    int slices = num_slices(columns);
#pragma unroll 1
    for (; slices > 1; slices -= 2) {
      issue();
      const Ring<Config::kStages> first = ring_;
      ring_.advance();
      issue();
      ptx::wgmma_wait<1>();  // the first slices were read
      Smem::pipeline().release(first);
      ptx::wgmma_wait<0>();  // and the second ones
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
    if (slices > 0) {
      issue();
      ptx::wgmma_wait<0>();  // the last slices were read
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
  }
  __device__ void issue() {
    using Wgmma = ptx::WgmmaBothShared<DType, kTileKeys, false, false>;
    const auto queries =
        Panel(Smem::kQueries).row_operand().after(ring_.stage * kWarpgroups + warpgroup_);
    const auto keys = Smem::keys(0).row_operand().after(ring_.stage);
    Smem::pipeline().wait(ring_);  // the slices have arrived
    ptx::wgmma_fence();            // wgmma may now touch these registers
#pragma unroll
    for (int d = 0; d < kPanelRows / 16; ++d) Wgmma::run(x_, queries.step(d), keys.step(d));
    ptx::wgmma_commit();
  }

  // A statistic of a lane's two rows.
  __device__ ptx::FloatPair stats(const float* of, const ScoreTile& tile) const {
    const i64 row = backward::stat_row(args_, tile.head, tile.batch) + first_row(tile);
    return {of[row], of[row + 8]};
  }
  __device__ int first_row(const ScoreTile& tile) const {
    return tile.query + warpgroup_ * kWarpgroupRows + warp_in_group() * kWarpRows + lane_id() / 4;
  }

  // P and the slope of a hidden score, which is -inf, are zero.
  __device__ void probabilities(const ScoreTile& tile) {
    const ptx::FloatPair lse = stats(args_.lse_log2, tile);
    Score::change(x_, args_);
    if (tile.hides) clear_unseen(tile, -attn::kInfinity);
    begin_panels();
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if constexpr (Config::kSlopes > 0) keep_slopes(n);
      exponentials(n, lse);
      u32 p[4];
      pack_operand<DType>(p, x_.v[0], n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p[e] = DType::at_most_one(p[e]);  // which the rounding of a large lse may have made more
        weights_[n][e] = Config::kSlopes > 0 ? DType::multiply(p[e], weights_[n][e]) : p[e];
      }
      write(p, n);
    }
    store_panels(tile, args_.part_heads * args_.heads_per_kv);  // after those of dS
  }
  // S of the 16 keys of step n becomes P = exp2(scale S - lse).
  __device__ void exponentials(int n, ptx::FloatPair lse) {
    const float scale = Score::scale(args_) * kLog2e;
#pragma unroll
    for (int j = 2 * n; j < 2 * n + 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = x_.v[0][j][e];
        x = ptx::exp2(fmaf(x, scale, -(e / 2 ? lse.y : lse.x)));
      }
  }
  // The derivatives of changed scores by the scaled ones; with P they become the weights of dP.
  __device__ void keep_slopes(int n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float (&x)[4] = x_.v[0][2 * n + e / 2];
      weights_[n][e] = DType::pack(Score::slope(x[e % 2 * 2]), Score::slope(x[e % 2 * 2 + 1]));
    }
  }

  __device__ void derivatives(const ScoreTile& tile) {
    const ptx::FloatPair delta = stats(args_.delta, tile);
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float (&x)[4] = x_.v[0][2 * n + e / 2];
        const float of_row = e % 2 ? delta.y : delta.x;
        const u32 weights = weights_[n][e];
        x[e % 2 * 2] = DType::low(weights) * (x[e % 2 * 2] - of_row);
        x[e % 2 * 2 + 1] = DType::high(weights) * (x[e % 2 * 2 + 1] - of_row);
      }
    if (tile.hides) clear_unseen(tile, 0.f);
    begin_panels();
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      u32 ds[4];
      pack_operand<DType>(ds, x_.v[0], n);
      write(ds, n);
    }
    store_panels(tile, 0);
  }

  // `value` where a query does not see a key. Rows and keys beyond a packed sequence may hold anything.
  __device__ void clear_unseen(const ScoreTile& tile, float value) {
    const typename Config::Mask mask(args_);
    const int key = tile.key + 2 * (lane_id() % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row(tile) + 8 * h;
      const int first = mask.first_key(row, tile.sequence) - key;
      const int end =
          (row < tile.sequence.q_len ? mask.end_key(row, tile.sequence) : tile.key) - key;
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e >= end || (Config::Mask::kHasStart && 8 * j + e < first))
            x_.v[0][j][2 * h + e] = value;
    }
  }

  // A warp writes 16 queries and the 16 keys of step n, transposed.
  __device__ void write(const u32 (&pairs)[4], int n) const {
    const int key = lane_id() / 16 * 8 + lane_id() % 8;
    const Panel panel = Smem::staged(warpgroup_, n * 16 / kPanelRows);
    ptx::stmatrix_x4_trans(panel.chunk(key, warp_in_group() * 2 + lane_id() / 8 % 2) +
                               n * 16 % kPanelRows * Panel::kRowBytes,
                           pairs);
  }
  __device__ void begin_panels() const {
    if (leads()) ptx::bulk_wait_read<0>();  // the panels before have left
    sync_warpgroup(warpgroup_);             // all may write over them
  }
  // `heads` precede those of these panels.
  __device__ void store_panels(const ScoreTile& tile, int heads) const {
    ptx::fence_proxy_async();    // the copies see what this lane wrote
    sync_warpgroup(warpgroup_);  // and what all wrote
    if (!leads()) return;
    const int end = args_.part_key + attn::in_stat_blocks(args_.part_keys);
#pragma unroll
    for (int p = 0; p < kKeyPanels; ++p) {
      const int key = tile.key + p * kPanelRows;
      if (key >= end) break;
      ptx::bulk_store(backward::workspace_panel(args_, heads + tile.head_of_part, key,
                                                tile.query + warpgroup_ * kWarpgroupRows),
                      Smem::staged(warpgroup_, p).address, Panel::kBytes);
    }
    ptx::tma_commit();
  }

  const BackwardKernelArgs& args_;
  const int warpgroup_;
  Ring<Config::kStages> ring_;
  Accumulator<kWarpRows, kTileKeys> x_;  // S, P, dP and dS, one after the other
  u32 weights_[kSteps][4];               // of dP - delta in dS: P, times the slopes of softcap
};

template <class Config>
__device__ void scores(const ScoreMaps& maps, const BackwardKernelArgs& args, const void* smem) {
  using Smem = ScoreMemory<Config>;
  static_assert(Smem::kBytes == Config::kSmemBytes, "the host's bytes of shared memory");
  if (threadIdx.x == 0) {
    check_smem_start(smem);
    Smem::init_barriers();
  }
  __syncthreads();       // the barriers are ready
  ptx::wait_for_grid();  // the statistics are stored, and the workspace was read
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x < kWarpSize) ScoreProducer<Config>(maps, args).run();
  } else {
    ptx::grow_to<Config::kConsumerRegisters>();
    ScoreConsumer<Config>(args, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::wide_backward
