// SPDX-License-Identifier: Apache-2.0
// The slot TileOrder: which tiles a CTA computes, one after the other. Here the slots that all backward
// kernels have are checked, of which it is the last.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/sm90/backward/derivative.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// The tiles of packed sequences: the blocks of all sequences, for each head.
template <class Config>
__device__ auto packed_keys(const BackwardKernelArgs& args) {
  return attn::PackedBlocks<Config::kBC>{args.cu_seqlens_k, args.seq_len_k, args.batch};
}

template <class Config>
__device__ int num_packed_tiles(const BackwardKernelArgs& args) {
  return packed_keys<Config>(args).count() * (args.heads / args.heads_per_kv) * args.head_splits;
}

// The tile may have no key.
template <class Config>
__device__ Tile packed_tile_in_group(int index, const BackwardKernelArgs& args, int group) {
  const auto keys = packed_keys<Config>(args);
  const auto [block, split] =
      block_in_group(index, keys.count(), args.heads / args.heads_per_kv * args.head_splits, group);
  const int batch = keys.sequence(block);
  return {(block - keys.first(batch)) * Config::kBC, split / args.head_splits, batch,
          split % args.head_splits};
}

template <class T, class Config>
concept TileOrderSlot =
    requires(typename T::template Walk<Config>& walk, Tile& tile, const BackwardKernelArgs& args) {
      { typename T::template Walk<Config>(args) };
      { walk.next(tile) } -> Same<bool>;
      walk.finish();
    };

// The walk of a CTA that has one tile, with the blocks of `Heads` heads side by side.
template <class Config, int Heads>
class OneTile {
 public:
  __device__ explicit OneTile(const BackwardKernelArgs& args) : args_(args) {}

  __device__ bool next(Tile& tile) {
    if (done_) return false;
    tile = tile_in_group<Config>(blockIdx.x, args_, Heads);
    return done_ = true;
  }
  __device__ void finish() {}

 private:
  const BackwardKernelArgs& args_;
  bool done_ = false;
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::tile_order {

// One CTA per tile: the tiles of a head one after the other. The hardware schedules them.
struct OneEach {
  template <class Config>
  using Walk = OneTile<Config, 1>;
};

// One CTA per tile. Heads are processed in groups whose queries stay in L2. Within a group the first
// keys come first: under a causal mask most queries see them, so short tiles come last.
struct Grouped {
  template <class Config>
  using Walk = OneTile<Config, Config::kGroupHeads>;
};

// Resident CTAs take the next tile of the grouped order from a counter in global memory, so that a CTA
// starts once, and the loads of a tile overlap with the end of the previous one.
struct Dynamic {
  template <class Config>
  class Walk {
   public:
    __device__ explicit Walk(const BackwardKernelArgs& args) : args_(args) {}

    // Tiles start in the order of the counter, whichever CTA starts first.
    __device__ bool next(Tile& tile) {
      const int index = atomicAdd(args_.tile_counter, 1);
      if (is_packed()) {
        if (index >= num_packed_tiles<Config>(args_)) return false;
        tile = packed_tile_in_group<Config>(index, args_, Config::kGroupHeads);
        return true;
      }
      if (index >= num_tiles<Config>(args_)) return false;
      tile = tile_in_group<Config>(index, args_, Config::kGroupHeads);
      return true;
    }

    // The last CTA to finish resets the counters to zero.
    __device__ void finish() {
      if (atomicAdd(args_.tile_counter + 1, 1) == gridDim.x - 1) {
        args_.tile_counter[0] = 0;
        args_.tile_counter[1] = 0;
      }
    }

   private:
    // Parts of the work that share a workspace have some of the heads of some sequences.
    __device__ bool is_packed() const {
      return Config::Lengths::kPerBatch && Config::kQueryWarps > 0 && args_.cu_seqlens_k;
    }

    const BackwardKernelArgs& args_;
  };
};

}  // namespace fa::sm90::backward::tile_order

namespace fa::sm90::backward {

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(attn::MaskSlot<typename Config::Mask>,
                "Mask: (args), kHasStart, kSeesAll, first_key, end_key, first_query, end_query");
  static_assert(attn::LengthsSlot<typename Config::Lengths>,
                "Lengths: kPerBatch, kPackedQueries, kLeastQueries, q_len(args, batch), "
                "sequence(args, batch)");
  static_assert(attn::ScoreSlot<typename Config::Score>,
                "Score: change(s, args), scale(args), slope(s)");
  static_assert(SlopesSlot<typename Config::Slopes, Products<Config>>,
                "Slopes: Kept<Math> with keep_slopes(slope) and multiply_slopes(scores)");
  static_assert(attn::FunctionSlot<typename Config::Function>,
                "Function: kScores, kMasks, kSlopes, kListed");
  static_assert(DroppingSlot<typename Config::Dropping, Config>,
                "Dropping: Of<Config>(args) with begin_tile(mail), next_head(), draw(key, query), "
                "drop(p), weights(p), drop_gradients(dp)");
  static_assert(DerivativeSlot<typename Config::Derivative, Products<Config>>,
                "Derivative: Kept<Math> with keep(scores) and keep(pairs), run<Math>(scores, kept, "
                "scale, deltas), convert<Math>(pairs, scores)");
  static_assert(TileOrderSlot<typename Config::TileOrder, Config>,
                "TileOrder: Walk<Config>(args) with next(tile), finish()");
  return true;
}

}  // namespace fa::sm90::backward
