// SPDX-License-Identifier: Apache-2.0
// The kernel of dQ = dS K, a plain product with dS from the workspace. A CTA has 128 queries of a head:
// warpgroup 0 loads blocks of 64 keys, two more have 64 queries each. Config::Sums says how dQ leaves.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/query_rows.cuh>
#include <fa/sm90/backward/staged_rows.cuh>

namespace fa::sm90::backward {

template <class Config>
class QueryProducer {
  using Smem = QueryMemory<Config>;
  using KeyTile = typename Smem::KeyTile;

 public:
  __device__ QueryProducer(const QueryRows<Config>& tile, const TensorMap& k_map)
      : tile_(tile), k_map_(k_map) {}

  __device__ void run() {
    const Blocks all = tile_.all_blocks();
    const Blocks of[] = {tile_.blocks_of(0), tile_.blocks_of(1)};
    for (int block = all.first; block < all.end; ++block) {
      Smem::pipeline().acquire(ring_);  // both have released it
      const ptx::Mbarrier full = Smem::pipeline().full(ring_.stage);
      ptx::mbarrier_arrive_expect(
          full, KeyTile::kBytes + (of[0].has(block) + of[1].has(block)) * Panel::kBytes);
      load_keys(block, full);
#pragma unroll
      for (int w = 0; w < kQueryWarpgroups; ++w)
        if (of[w].has(block))
          ptx::bulk_load(Smem::ds(ring_.stage, w).address,
                         workspace_panel(tile_.args, tile_.head_of_part, block * kPanelRows,
                                         tile_.first_row(w)),
                         Panel::kBytes, full);
      ring_.advance();
    }
  }

 private:
  __device__ void load_keys(int block, ptx::Mbarrier full) const {
    const attn::Sequence& sequence = tile_.sequence;
#pragma unroll
    for (int p = 0; p < KeyTile::kCount; ++p)
      ptx::tma_load_4d(Smem::k(ring_.stage).panel(p), k_map_, full,
                       tile_.column() + p * KeyTile::kColumns, tile_.kv_head,
                       sequence.k_first + block * kPanelRows, sequence.k_batch);
  }

  const QueryRows<Config>& tile_;
  const TensorMap& k_map_;
  Ring<Config::kStages> ring_;
};

template <class Config>
class QueryConsumer {
  using Smem = QueryMemory<Config>;
  using Sum = Accumulator<kWarpRows, Config::kDHead>;

 public:
  __device__ QueryConsumer(const QueryRows<Config>& tile, const TensorMap& dq_map, int warpgroup)
      : tile_(tile), dq_map_(dq_map), warpgroup_(warpgroup) {}

  // Two products at a time. None runs over the end of an iteration, or ptxas would serialise them.
  __device__ void run() {
    sum_.zero();
    const Blocks all = tile_.all_blocks(), own = tile_.blocks_of(warpgroup_);
    pass_blocks(all.first, min(own.first, all.end));
    int block = own.first;
#pragma unroll 1
    for (; block + 1 < own.end; block += 2) {
      wait_block(block);
      issue();  // dQ += dS K
      const Ring<Config::kStages> first = ring_;
      ring_.advance();
      wait_block(block + 1);
      issue();               // dQ += dS K of the next block
      ptx::wgmma_wait<1>();  // the first product is complete
      Smem::pipeline().release(first);
      ptx::wgmma_wait<0>();  // and the second one
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
    if (block < own.end) {
      wait_block(block);
      issue();               // dQ += dS K
      ptx::wgmma_wait<0>();  // dQ is complete
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
    pass_blocks(max(own.end, all.first), all.end);
    Config::Sums::store(sum_, tile_, warpgroup_, dq_map_);
  }

 private:
  __device__ void wait_block(int block) const {
    Smem::pipeline().wait(ring_);  // dS and K have arrived
    if (Config::Lengths::kPerBatch) clear_tail(block);
  }
  // Blocks that only the other warpgroup's queries see.
  __device__ void pass_blocks(int first, int end) {
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      wait_block(block);
      Smem::pipeline().release(ring_);
      ring_.advance();
    }
  }

  __device__ void issue() {
    using Wgmma = ptx::WgmmaBothShared<typename Config::DType, Config::kDHead, true, true>;
    const auto ds = Smem::ds(0, warpgroup_).column_operand().after(ring_.stage * kQueryWarpgroups);
    const auto k = Smem::k(0).column_operand().after(ring_.stage);
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < kPanelRows / 16; ++n) Wgmma::run(sum_, ds.step(n), k.step(n));
    ptx::wgmma_commit();
  }

  // Rows of K that hold no key meet a dS of zero, and 0 times NaN is NaN.
  __device__ void clear_tail(int block) const {
    const int keys = tile_.sequence.k_len - block * kPanelRows;
    if (keys >= kPanelRows) return;
    clear_rows(Smem::k(ring_.stage), keys, kPanelRows, threadIdx.x - kWarpgroupSize,
               kQueryWarpgroups * kWarpgroupSize);
    sync_warpgroups<kQueryWarpgroups>();  // both have stored their zeros
  }

  const QueryRows<Config>& tile_;
  const TensorMap& dq_map_;
  const int warpgroup_;
  Ring<Config::kStages> ring_;
  Sum sum_;
};

template <class Config>
__device__ void queries(const TensorMap& k_map, const TensorMap& dq_map,
                        const BackwardKernelArgs& args, const void* smem) {
  using Smem = QueryMemory<Config>;
  static_assert(Smem::kBytes == Config::kSmemBytes, "the host's bytes of shared memory");
  ptx::wait_for_grid();  // dS is stored
  const QueryRows<Config> tile(args, blockIdx.x / Config::kPasses);
  if (tile.empty()) return;
  if (threadIdx.x == 0) {
    check_smem_start(smem);
    Smem::init_barriers();
  }
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    if (threadIdx.x == 0) QueryProducer<Config>(tile, k_map).run();
  } else {
    ptx::grow_to<Config::kQueryRegisters>();
    QueryConsumer<Config>(tile, dq_map, warpgroup - 1).run();
  }
}

}  // namespace fa::sm90::backward
