// SPDX-License-Identifier: Apache-2.0
// The kernel of dV = P^T dO and dK = dS^T Q for wide heads, plain products with P and dS from the workspace,
// over all queries that see the keys and all heads that share them. A CTA has 128 keys and kDHead columns
// of a gradient: warpgroup 0 loads blocks of 64 queries, two more have 64 keys each.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/query_rows.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::wide_backward {

using backward::kPanelRows;
using backward::Panel;

inline constexpr int kKeyWarpgroups = backward::kQueryWarpgroups;

// The tensors of a gradient: the rows that are multiplied, and where it goes.
struct KeyMaps {
  const TensorMap &rows, &gradient;
};

// What a CTA computes.
template <class Config>
struct KeyWork {
  const BackwardKernelArgs& args;
  const bool values;  // the gradient is dV, else dK
  const int column;   // the first one
  backward::Tile tile;
  attn::Sequence sequence;
  int panel_head;  // of the workspace, for the first head

  // The passes of a tile read the same panels, and follow each other.
  __device__ KeyWork(const BackwardKernelArgs& args, bool values)
      : args(args), values(values), column(blockIdx.x % Config::kPasses * Config::kDHead) {
    tile = backward::tile_in_group<Config>(blockIdx.x / Config::kPasses, args, Config::kGroupHeads);
    sequence = Config::Lengths::sequence(args, tile.batch);
    const int heads = args.part_heads * args.heads_per_kv;  // of the part; P is after dS
    panel_head = tile.batch * args.heads + head() - args.part_head * args.heads_per_kv +
                 (values ? heads : 0);
  }

  __device__ int head() const { return tile.kv_head * args.heads_per_kv; }
  __device__ bool empty() const {
    return tile.key_first >= sequence.k_len || column >= (values ? args.d_v : args.d_qk);
  }
  __device__ backward::Blocks blocks() const {
    const backward::TileRange<Config> range(typename Config::Mask(args), tile.key_first,
                                            Config::kBC, sequence);
    return {range.first_block(), range.end_block()};
  }
};

template <class Config>
class KeyProducer {
  using Smem = backward::QueryMemory<Config>;
  using RowTile = typename Smem::KeyTile;

 public:
  __device__ KeyProducer(const KeyWork<Config>& work, const TensorMap& map)
      : work_(work), map_(map) {}

  __device__ void run() {
    const backward::Blocks blocks = work_.blocks();
    for (int h = 0; h < work_.args.heads_per_kv; ++h)
      for (int block = blocks.first; block < blocks.end; ++block) load(h, block);
  }

 private:
  __device__ void load(int h, int block) {
    const attn::Sequence& sequence = work_.sequence;
    Smem::pipeline().acquire(ring_);  // both have released it
    const ptx::Mbarrier full = Smem::pipeline().full(ring_.stage);
    ptx::mbarrier_arrive_expect(full, RowTile::kBytes + kKeyWarpgroups * Panel::kBytes);
#pragma unroll
    for (int w = 0; w < kKeyWarpgroups; ++w)
      ptx::bulk_load(
          Smem::ds(ring_.stage, w).address,
          backward::workspace_panel(work_.args, work_.panel_head + h,
                                    work_.tile.key_first + w * kWarpgroupRows, block * kPanelRows),
          Panel::kBytes, full);
#pragma unroll
    for (int p = 0; p < RowTile::kCount; ++p)
      ptx::tma_load_4d(Smem::k(ring_.stage).panel(p), map_, full,
                       work_.column + p * RowTile::kColumns, work_.head() + h,
                       sequence.q_first + block * kPanelRows, sequence.q_batch);
    ring_.advance();
  }

  const KeyWork<Config>& work_;
  const TensorMap& map_;
  Ring<Config::kStages> ring_;
};

template <class Config>
class KeyConsumer {
  using Smem = backward::QueryMemory<Config>;

 public:
  __device__ KeyConsumer(const KeyWork<Config>& work, const TensorMap& map, int warpgroup)
      : work_(work), map_(map), warpgroup_(warpgroup) {}

  // Two products at a time. None runs over the end of an iteration, or ptxas would serialise them.
  __device__ void run() {
    blocks_ = work_.blocks();
    block_ = blocks_.first;
    gradient_.zero();
    int steps = (blocks_.end - blocks_.first) * work_.args.heads_per_kv;
#pragma unroll 1
    for (; steps > 1; steps -= 2) {
      issue();
      const Ring<Config::kStages> first = ring_;
      ring_.advance();
      issue();
      ptx::wgmma_wait<1>();  // the first product is complete
      Smem::pipeline().release(first);
      ptx::wgmma_wait<0>();  // and the second one
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
    if (steps > 0) {
      issue();
      ptx::wgmma_wait<0>();  // the gradient is complete
      Smem::pipeline().release(ring_);
    }
    store();
  }

 private:
  // The gradient += P^T dO, or dS^T Q.
  __device__ void issue() {
    using Wgmma = ptx::WgmmaBothShared<typename Config::DType, Config::kDHead, false, true>;
    Smem::pipeline().wait(ring_);  // the panels and the rows have arrived
    if (Config::Lengths::kPerBatch) clear_tail();
    const auto a = Smem::ds(0, warpgroup_).row_operand().after(ring_.stage * kKeyWarpgroups);
    const auto b = Smem::k(0).column_operand().after(ring_.stage);
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < kPanelRows / 16; ++n) Wgmma::run(gradient_, a.step(n), b.step(n));
    ptx::wgmma_commit();
  }

  // Rows that hold no query meet a P and a dS of zero, and 0 times NaN is NaN.
  __device__ void clear_tail() {
    const int rows = work_.sequence.q_len - block_ * kPanelRows;
    if (++block_ == blocks_.end) block_ = blocks_.first;  // of the next head
    if (rows >= kPanelRows) return;
    backward::clear_rows(Smem::k(ring_.stage), rows, kPanelRows, threadIdx.x - kWarpgroupSize,
                         kKeyWarpgroups * kWarpgroupSize);
    backward::sync_warpgroups<kKeyWarpgroups>();  // both have stored their zeros
  }

  __device__ void store() {
    const BackwardKernelArgs& args = work_.args;
    const attn::Sequence& sequence = work_.sequence;
    backward::sync_warpgroups<kKeyWarpgroups>();  // both have read the rows, whose buffers it takes
    const auto staged = Smem::k(warpgroup_);
    const int first = warp_in_group() * kWarpRows;
    const int row = work_.tile.key_first + warpgroup_ * kWarpgroupRows + first;
    backward::stage_rows<typename Config::DType>(gradient_, work_.values ? 1.f : args.softmax_scale,
                                                 staged, first);
    const auto columns =
        work_.values
            ? backward::columns_of<Config>(args.dv, args.dv_stride, args.d_v, work_.column)
            : backward::columns_of<Config>(args.dk, args.dk_stride, args.d_qk, work_.column);
    backward::store_staged<Config::Lengths::kPerBatch>(
        staged, first, sequence.k_len - row, map_,
        {columns, sequence.k_first + row, work_.tile.kv_head, sequence.k_batch});
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
  }

  const KeyWork<Config>& work_;
  const TensorMap& map_;
  const int warpgroup_;
  backward::Blocks blocks_;
  int block_;
  Ring<Config::kStages> ring_;
  Accumulator<kWarpRows, Config::kDHead> gradient_;
};

// The grid's second dimension is the gradient: dK, then dV, if both are wanted.
template <class Config>
__device__ void keys(const KeyMaps& keys, const KeyMaps& values, const BackwardKernelArgs& args,
                     const void* smem) {
  using Smem = backward::QueryMemory<Config>;
  static_assert(Smem::kBytes == Config::kSmemBytes, "the host's bytes of shared memory");
  ptx::wait_for_grid();  // P and dS are stored
  const KeyWork<Config> work(args, Config::kKeys == 0 || blockIdx.y > 0);
  if (work.empty()) return;
  const KeyMaps& maps = work.values ? values : keys;
  if (threadIdx.x == 0) {
    check_smem_start(smem);
    Smem::init_barriers();
  }
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) KeyProducer<Config>(work, maps.rows).run();
  } else {
    ptx::grow_to<Config::kQueryRegisters>();
    KeyConsumer<Config>(work, maps.gradient, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::wide_backward
