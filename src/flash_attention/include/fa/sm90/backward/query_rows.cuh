// SPDX-License-Identifier: Apache-2.0
// A tile of the kernel that computes dQ from the workspace: 128 queries of one head of q, and the key
// blocks of the part that they see. If dQ is wider than a warpgroup's registers, kPasses CTAs share its
// columns, kDHead each.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/backward/workspace.cuh>

namespace fa::sm90::backward {

// The shared memory of the kernel that computes dQ from the workspace: ring buffers of dS and K, then the
// mbarriers. All addresses are constants.
inline constexpr int kQueryWarpgroups = 2;  // with 64 queries each

template <class Config>
struct QueryMemory {
  using KeyTile = SharedTile<Config::kDHead, kPanelRows>;
  static constexpr int kStages = Config::kStages;
  static constexpr u32 kDs = kSmemStart;
  static constexpr u32 kK = kDs + kStages * kQueryWarpgroups * Panel::kBytes;
  static constexpr u32 kBarriers = kK + kStages * KeyTile::kBytes;
  using BlockPipeline = Pipeline<KeyTile, kStages>;  // of K, and the dS that come with it
  static constexpr int kBytes = kBarriers - kSmemStart + BlockPipeline::kBarrierBytes;

  static __device__ Panel ds(int stage, int warpgroup) {
    return Panel(kDs + (stage * kQueryWarpgroups + warpgroup) * Panel::kBytes);
  }
  static __device__ BlockPipeline pipeline() { return {kK, kBarriers}; }
  static __device__ KeyTile k(int stage) { return pipeline().tile(stage); }

  static __device__ void init_barriers() {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage)
      pipeline().init(stage, 1, kQueryWarpgroups * kWarpgroupWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }
};

inline constexpr int kNoBlock = 1 << 30;

struct Blocks {
  int first, end;
  __device__ bool has(int block) const { return first <= block && block < end; }
};

template <class Config>
struct QueryRows {
  static constexpr int kQueries = kQueryWarpgroups * kWarpgroupRows;

  const BackwardKernelArgs& args;
  int first, head_of_part, head, kv_head, batch;
  attn::Sequence sequence;

  // The last queries come first: under a causal mask they see most keys. The last heads come first: their
  // dS is in L2.
  __device__ QueryRows(const BackwardKernelArgs& args, int index) : args(args) {
    const int blocks = (args.seq_len_q + kQueries - 1) / kQueries;
    const int heads = args.part_heads * args.heads_per_kv;
    auto place = block_in_group(index, blocks, heads, Config::kGroupHeads);
    place.head = heads - 1 - place.head;
    const int kv_heads = args.heads / args.heads_per_kv;
    const int kv = args.part_head + place.head / args.heads_per_kv;  // over all sequences
    first = (blocks - 1 - place.block) * kQueries;
    head_of_part = place.head;
    kv_head = kv % kv_heads;
    head = kv_head * args.heads_per_kv + place.head % args.heads_per_kv;
    batch = kv / kv_heads;
    sequence = Config::Lengths::sequence(args, batch);
  }

  // The first column of this CTA.
  static __device__ int column() {
    return Config::kPasses == 1 ? 0 : blockIdx.x % Config::kPasses * Config::kDHead;
  }
  __device__ bool empty() const {
    return first >= sequence.q_len || (Config::kPasses > 1 && column() >= args.d_qk);
  }
  __device__ Columns columns() const {
    return columns_of<Config>(args.dq, args.dq_stride, args.d_qk, column());
  }
  __device__ int first_row(int warpgroup) const { return first + warpgroup * kWarpgroupRows; }

  // The key blocks that `count` queries from `row` on see, among those of the part.
  __device__ Blocks blocks(int row, int count) const {
    if (row >= sequence.q_len) return {kNoBlock, kNoBlock};
    const attn::KeyRange<typename Config::Mask, kPanelRows> range(typename Config::Mask(args), row,
                                                                  count, sequence);
    const int first = max(range.first_block(), args.part_key / kPanelRows);
    const int end = (args.part_key + args.part_keys + kPanelRows - 1) / kPanelRows;
    return {first, max(first, min(range.end_block(), end))};
  }
  __device__ Blocks all_blocks() const { return blocks(first, kQueries); }
  __device__ Blocks blocks_of(int warpgroup) const {
    return blocks(first_row(warpgroup), kWarpgroupRows);
  }
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::sums {

// The part has all keys of its heads: dQ is complete, and leaves in 16 bits.
struct Stored {
  template <class Config, class Sum>
  static __device__ void store(const Sum& sum, const QueryRows<Config>& tile, int warpgroup,
                               const TensorMap& map) {
    const BackwardKernelArgs& args = tile.args;
    sync_warpgroups<kQueryWarpgroups>();  // both have read K, whose buffers take dQ
    const auto staged = QueryMemory<Config>::k(warpgroup);
    const int first = warp_in_group() * kWarpRows;
    const int row = tile.first_row(warpgroup) + first;
    stage_rows<typename Config::DType>(sum, args.softmax_scale, staged, first);
    const attn::Sequence& sequence = tile.sequence;
    store_staged<Config::Lengths::kPerBatch>(
        staged, first, sequence.q_len - row, map,
        {tile.columns(), sequence.q_first + row, tile.head, sequence.q_batch});
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
  }
};

// The part has some of the keys: its share of dQ is added to dq_sum. Parts follow each other, and no two
// CTAs of a part have the same queries, so the order of additions is always the same.
struct Added {
  template <class Config, class Sum>
  static __device__ void store(const Sum& sum, const QueryRows<Config>& tile, int warpgroup,
                               const TensorMap&) {
    const BackwardKernelArgs& args = tile.args;
    const i64 row = static_cast<i64>(tile.head) * args.stat_rows +
                    attn::first_stat_row(args, tile.batch) + tile.first_row(warpgroup);
    constexpr int kColumns = Config::kPasses * Config::kDHead;
    float4* const to = reinterpret_cast<float4*>(args.dq_sum + row * kColumns) +
                       tile.column() / 8 * kWarpgroupSize + threadIdx.x % kWarpgroupSize;
#pragma unroll
    for (int j = 0; j < Sum::kColFragments; ++j) {
      const float (&x)[4] = sum.v[0][j];
      float4& sums = to[j * kWarpgroupSize];
      sums = {sums.x + x[0], sums.y + x[1], sums.z + x[2], sums.w + x[3]};
    }
  }
};

}  // namespace fa::sm90::backward::sums
