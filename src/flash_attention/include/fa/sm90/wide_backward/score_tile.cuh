// SPDX-License-Identifier: Apache-2.0
// The tiles of the kernel that computes P and dS for wide heads: 128 queries of one head and 256 keys. A CTA
// takes every gridDim.x-th tile of a part of the work, and leaves out those in which no query sees a key.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/backward/workspace.cuh>
#include <fa/sm90/pipeline.cuh>

namespace fa::sm90::wide_backward {

using backward::kPanelRows;
using backward::Panel;

inline constexpr int kWarpgroups = 2;  // that compute, with 64 queries each
inline constexpr int kTileQueries = kWarpgroups * kWarpgroupRows;
inline constexpr int kTileKeys = 256;
inline constexpr int kKeyPanels = kTileKeys / kPanelRows;

struct ScoreTile {
  int query, key;          // the first of each, in the sequence
  int head_of_part, head;  // of q
  int kv_head, batch;
  bool hides = false;  // some query does not see some key, or there is none
  attn::Sequence sequence;
};

template <class Config>
class ScoreWalk {
  static constexpr int kGroup = 16;  // blocks of queries side by side, whose rows stay in L2

 public:
  __device__ explicit ScoreWalk(const BackwardKernelArgs& args) : args_(args), index_(blockIdx.x) {}

  // The next tile of this CTA, if there is one.
  __device__ bool next(ScoreTile& tile) {
    const int blocks = (args_.seq_len_q + kTileQueries - 1) / kTileQueries;
    const int group = min(kGroup, blocks);
    const int of_group = group * ((args_.part_keys + kTileKeys - 1) / kTileKeys);
    const int of_head = (blocks + group - 1) / group * of_group;
    const int count = of_head * args_.part_heads * args_.heads_per_kv;
    bool found = false;
    for (; !found && index_ < count; index_ += gridDim.x) {
      const int in_head = index_ % of_head, in_group = in_head % of_group;
      tile.head_of_part = index_ / of_head;
      tile.query = (in_head / of_group * group + in_group % group) * kTileQueries;
      tile.key = args_.part_key + in_group / group * kTileKeys;
      found = sees(tile);
    }
    return uniform(found);
  }

 private:
  // Whether a query sees a key of the part.
  __device__ bool sees(ScoreTile& tile) const {
    using Mask = typename Config::Mask;
    const int kv_heads = args_.heads / args_.heads_per_kv;
    const int kv = args_.part_head + tile.head_of_part / args_.heads_per_kv;  // over all sequences
    tile.kv_head = kv % kv_heads;
    tile.head = tile.kv_head * args_.heads_per_kv + tile.head_of_part % args_.heads_per_kv;
    tile.batch = kv / kv_heads;
    tile.sequence = Config::Lengths::sequence(args_, tile.batch);
    if (tile.query >= tile.sequence.q_len) return false;
    const attn::KeyRange<Mask, kTileKeys> range(Mask(args_), tile.query, kTileQueries,
                                                tile.sequence);
    const int end = min(tile.key + kTileKeys, args_.part_key + args_.part_keys);
    tile.hides = tile.key + kTileKeys > range.end_first ||
                 (Mask::kHasStart && tile.key < range.start_last) ||
                 (Config::Lengths::kPerBatch && tile.query + kTileQueries > tile.sequence.q_len);
    return tile.key < range.end_last && (!Mask::kHasStart || range.start_first < end);
  }

  const BackwardKernelArgs& args_;
  int index_;
};

// The shared memory: a ring of slices of 64 columns of Q and K, then of dO and V, the panels that leave, and
// the mbarriers. All addresses are constants.
template <class Config>
struct ScoreMemory {
  using QueryTile = SharedTile<kPanelRows, kTileQueries>;  // a slice
  using KeyTile = SharedTile<kPanelRows, kTileKeys>;
  using SlicePipeline = Pipeline<KeyTile, Config::kStages>;  // of K, and the Q that come with it
  static constexpr int kSliceBytes = QueryTile::kBytes + KeyTile::kBytes;

  static constexpr u32 kQueries = kSmemStart;
  static constexpr u32 kKeys = kQueries + Config::kStages * QueryTile::kBytes;
  static constexpr u32 kStaged = kKeys + SlicePipeline::kTileBytes;
  static constexpr u32 kBarriers = kStaged + kWarpgroups * kKeyPanels * Panel::kBytes;
  static constexpr int kBytes = kBarriers - kSmemStart + SlicePipeline::kBarrierBytes;

  static __device__ SlicePipeline pipeline() { return {kKeys, kBarriers}; }
  static __device__ QueryTile queries(int stage) {
    return QueryTile(kQueries + stage * QueryTile::kBytes);
  }
  static __device__ KeyTile keys(int stage) { return pipeline().tile(stage); }
  static __device__ Panel staged(int warpgroup, int panel) {
    return Panel(kStaged + (warpgroup * kKeyPanels + panel) * Panel::kBytes);
  }

  static __device__ void init_barriers() {
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage)
      pipeline().init(stage, 1, kWarpgroups * kWarpgroupWarps);
    ptx::fence_mbarrier_init();  // TMA sees them
  }
};

}  // namespace fa::sm90::wide_backward
