// SPDX-License-Identifier: Apache-2.0
// A tile of the kernel that computes dQ from the workspace: 128 queries of one head of q, and the key
// blocks of the part that they see.
#pragma once
#include <fa/attn/key_range.cuh>
#include <fa/sm90/backward/query_memory.cuh>
#include <fa/sm90/backward/tile.cuh>

namespace fa::sm90::backward {

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

  __device__ bool empty() const { return first >= sequence.q_len; }
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
