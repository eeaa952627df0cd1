// SPDX-License-Identifier: Apache-2.0
// Lists of the blocks that tiles visit, by what is known of a user's mask in a whole tile: an empty block is left
// out, and a full one needs no mask. The minima and maxima of captured tensors are computed before.
#pragma once
#include <fa/attn/block_list.cuh>
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/traced.cuh>
#include <fa/attn/verdict.cuh>
#include <fa/backward_args.cuh>
#include <fa/core.cuh>
#include <fa/forward_args.cuh>

namespace fa::lists {

// Of a tile of queries, which visits blocks of keys.
template <class Config>
struct OfQueries {
  static constexpr bool kOfQueries = true;
  using Range = attn::KeyRange<typename Config::Mask, Config::kBlockRows>;

  static __device__ int longest(const CallArgs& args) { return args.seq_len_q; }
  static __device__ int own(const attn::Sequence& sequence) { return sequence.q_len; }
  static __device__ int visited(const attn::Sequence& sequence) { return sequence.k_len; }
  // The rest of a block after the last key is hidden.
  static __device__ bool is_ragged(int /*block*/, const attn::Sequence&) { return false; }
};

// Of a tile of keys, which visits blocks of queries.
template <class Config>
struct OfKeys {
  static constexpr bool kOfQueries = false;
  using Range = attn::QueryRange<typename Config::Mask, Config::kBlockRows>;

  static __device__ int longest(const CallArgs& args) { return args.seq_len_k; }
  static __device__ int own(const attn::Sequence& sequence) { return sequence.k_len; }
  static __device__ int visited(const attn::Sequence& sequence) { return sequence.q_len; }
  // What a function makes of a row after the last query may be anything.
  static __device__ bool is_ragged(int block, const attn::Sequence& sequence) {
    return (block + 1) * Config::kBlockRows > sequence.q_len;
  }
};

enum Verdict : int { kEmpty, kFull, kPartial };

// The tile of a list. `Known` says what is known of the mask in a block of a tile.
template <class Config, class Known, template <class> class SideOf, class Args>
class ListedTile {
  using Side = SideOf<Config>;

 public:
  __device__ ListedTile(const Args& args, int tile, int batch, int head)
      : args_(args),
        sequence_(Config::Lengths::sequence(args, batch)),
        batch_(batch),
        head_(head),
        first_(tile * Config::kTileRows),
        last_(min(first_ + Config::kTileRows, Side::own(sequence_)) - 1),
        ahead_(args.absolute ? sequence_.k_len - sequence_.q_len : 0) {
    if (has_rows()) range_ = {typename Config::Mask(args), first_, Config::kTileRows, sequence_};
  }

  __device__ bool has_rows() const { return first_ <= last_; }
  __device__ int first_block() const { return range_.first_block(); }
  __device__ int end_block() const { return range_.end_block(); }

  __device__ int verdict(int block) const {
    const int from = block * Config::kBlockRows;
    const int to = min(from + Config::kBlockRows, Side::visited(sequence_)) - 1;
    if (block >= range_.end_block() || to < from) return kEmpty;
    const int found =
        Side::kOfQueries ? ask(first_, last_, from, to) : ask(from, to, first_, last_);
    const bool hides = range_.hides(block) || Side::is_ragged(block, sequence_);
    return found == kFull && hides ? kPartial : found;
  }

 private:
  __device__ int ask(int q0, int q1, int k0, int k1) const {
    const auto& own = reinterpret_cast<const typename Known::Args&>(args_.program);
    return Known::verdict(own, Known::tables(own, args_.bounds), batch_, head_, q0 + ahead_,
                          q1 + ahead_, k0, k1);
  }

  const Args& args_;
  const attn::Sequence sequence_;
  const int batch_, head_;
  const int first_, last_;  // rows of the tile
  const int ahead_;
  typename Side::Range range_;
};

// A warp makes one list. The blocks that need the mask have the last places of it.
template <class Config, class Known, template <class> class SideOf, class Args>
__device__ void list_blocks(const Args& args) {
  const int tiles = (SideOf<Config>::longest(args) + Config::kTileRows - 1) / Config::kTileRows;
  const i64 list = static_cast<i64>(blockIdx.x) * (Config::kThreads / kWarpSize) + warp_id();
  const int head = static_cast<int>(list % args.list_heads);
  const int batch = static_cast<int>(list / args.list_heads / tiles);
  if (batch >= args.list_batches) return;
  const ListedTile<Config, Known, SideOf, Args> tile(
      args, static_cast<int>(list / args.list_heads % tiles), batch, head);

  int* const places = args.list_entries + list * args.list_stride;
  const u32 before = (1u << lane_id()) - 1;
  int whole = 0, partial = 0, all_partial = 0;
  const int end = tile.has_rows() ? tile.end_block() : 0;
  const int first = tile.has_rows() ? tile.first_block() : 0;
  for (int block = first; block < end; block += kWarpSize)
    all_partial += __popc(__ballot_sync(~0u, tile.verdict(block + lane_id()) == kPartial));
  for (int block = first; block < end; block += kWarpSize) {
    const int found = tile.verdict(block + lane_id());
    const u32 full = __ballot_sync(~0u, found == kFull);
    const u32 rest = __ballot_sync(~0u, found == kPartial);
    if (found == kFull) places[whole + __popc(full & before)] = block + lane_id();
    if (found == kPartial)
      places[args.list_stride - all_partial + partial + __popc(rest & before)] = block + lane_id();
    whole += __popc(full);
    partial += __popc(rest);
  }
  if (lane_id() == 0) {
    args.list_counts[2 * list] = whole;
    args.list_counts[2 * list + 1] = whole + partial;
  }
}

// The minima and maxima of blocks of captured tensors.
template <class Config, class Known, template <class> class SideOf, class Args>
__device__ void fill_bounds(const Args& args) {
  constexpr int kWarps = Config::kThreads / kWarpSize;
  const auto& own = reinterpret_cast<const typename Known::Args&>(args.program);
  Known::fill(own, Known::tables(own, args.bounds),
              static_cast<i64>(blockIdx.x) * kWarps + warp_id(),
              static_cast<i64>(gridDim.x) * kWarps);
}

}  // namespace fa::lists
