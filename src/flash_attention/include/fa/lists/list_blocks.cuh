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

// Rows that visit blocks: those of a tile, or of a piece of it. `Known` says what is known of the mask in a block.
template <class Config, class Known, template <class> class SideOf, class Args>
class ListedRows {
  using Side = SideOf<Config>;

 public:
  __device__ ListedRows(const Args& args, int first, int rows, int batch, int head)
      : args_(args),
        sequence_(Config::Lengths::sequence(args, batch)),
        batch_(batch),
        head_(head),
        first_(first),
        last_(min(first + rows, Side::own(sequence_)) - 1),
        ahead_(args.absolute ? sequence_.k_len - sequence_.q_len : 0) {
    if (has_rows()) range_ = {typename Config::Mask(args), first, rows, sequence_};
  }

  __device__ bool has_rows() const { return first_ <= last_; }
  __device__ int first_block() const { return range_.first_block(); }
  __device__ int end_block() const { return range_.end_block(); }
  __device__ int nearest_block() const { return (last_ + ahead_) / Config::kBlockRows; }

  __device__ int verdict(int block) const {
    if (!has_rows() || block < range_.first_block() || block >= range_.end_block()) return kEmpty;
    const int from = block * Config::kBlockRows;
    const int to = min(from + Config::kBlockRows, Side::visited(sequence_)) - 1;
    if (to < from) return kEmpty;
    const int found =
        Side::kOfQueries ? ask(first_, last_, from, to) : ask(from, to, first_, last_);
    const bool hides = range_.hides(block) || Side::is_ragged(block, sequence_);
    return found == kFull && hides ? kPartial : found;
  }

  // Whether queries see only the narrow part of a key block.
  __device__ bool sees_narrow(int block) const {
    const int from = block * Config::kBlockRows;
    const int to = min(from + Config::kBlockRows, range_.end_last) - 1;
    const int beyond = from + Config::kNarrowKeys;
    return to < beyond || ask(first_, last_, beyond, to) == kEmpty;
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
  const int first_, last_;
  const int ahead_;
  typename Side::Range range_;
};

// What a warp finds out about a piece of a tile while it goes through the blocks in their order, 32 at a time.
struct PieceOfTile {
  attn::PieceEnds ends = {};
  bool has_begun = false;  // a block that the piece sees came

  // Of blocks that need the mask, `early` ones come before those that are seen whole, and `late` ones after them.
  // The piece sees some keys of `seen`, and none but narrow parts of `narrow`.
  __device__ void add(u32 early, u32 late, u32 seen, u32 narrow) {
    if (!has_begun) {
      const u32 first = seen & early;
      ends.before += __popc(first ? early & (first & -first) - 1 : early);
      has_begun = first != 0;
    }
    const u32 shown = seen & late;
    if (shown) {
      const int last = 31 - __clz(static_cast<int>(shown));
      ends.after = __popc(last == 31 ? 0 : late >> (last + 1));
      ends.narrow = narrow >> last & 1;
    } else {
      ends.after += __popc(late);
    }
  }
};

// A warp makes one list.
template <class Config, class Known, template <class> class SideOf, class Args>
class ListMaker {
  using Rows = ListedRows<Config, Known, SideOf, Args>;
  static constexpr int kPieces = Config::kPieces;
  static constexpr int kPieceRows = Config::kTileRows / kPieces;
  static constexpr int kNone = 1 << attn::kBlockBits;  // more than any block

 public:
  __device__ ListMaker(const Args& args, int tile, int batch, int head, u32* entries)
      : args_(args),
        tile_(args, tile * Config::kTileRows, Config::kTileRows, batch, head),
        first_row_(tile * Config::kTileRows),
        batch_(batch),
        head_(head),
        entries_(entries) {}

  __device__ attn::ListCounts run() {
    if (!tile_.has_rows()) return {};
    count();
    for (int from = tile_.first_block(); from < tile_.end_block(); from += kWarpSize) list(from);
    u32 pieces = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      pieces |= pieces_[piece].ends.byte() << (8 * piece);
    return {early_, early_ + whole_, early_ + whole_ + late_, pieces};
  }

 private:
  // How many blocks there are of which kind.
  __device__ void count() {
    for (int from = tile_.first_block(); from < tile_.end_block(); from += kWarpSize) {
      const int found = tile_.verdict(from + lane_id());
      const u32 full = __ballot_sync(~0u, found == kFull);
      const u32 partial = __ballot_sync(~0u, found == kPartial);
      if (full && first_whole_ == kNone) first_whole_ = from + __ffs(static_cast<int>(full)) - 1;
      whole_ += __popc(full);
      near_ += __popc(full & before(tile_.nearest_block() + 1 - from));
      early_ += __popc(partial & before(first_whole_ - from));
      late_ += __popc(partial & ~before(first_whole_ - from));
    }
    if (first_whole_ == kNone) late_ = early_, early_ = 0;
  }

  // Writes the entries of 32 blocks.
  __device__ void list(int from) {
    const int block = from + lane_id(), found = tile_.verdict(block);
    const u32 own = before(lane_id());
    const u32 full = __ballot_sync(~0u, found == kFull);
    const u32 partial = __ballot_sync(~0u, found == kPartial);
    const u32 early = first_whole_ == kNone ? 0 : partial & before(first_whole_ - from);
    const u32 late = partial & ~early;
    u32 entry = block | (found == kFull ? attn::kWholeForAll : 0);
    if constexpr (SideOf<Config>::kOfQueries) entry |= look(block, found == kPartial, early, late);
    if (early >> lane_id() & 1) entries_[listed_early_ + __popc(early & own)] = entry;
    if (full >> lane_id() & 1) entries_[early_ + place(listed_whole_ + __popc(full & own))] = entry;
    if (late >> lane_id() & 1)
      entries_[early_ + whole_ + listed_late_ + __popc(late & own)] = entry;
    listed_early_ += __popc(early), listed_whole_ += __popc(full), listed_late_ += __popc(late);
  }

  // The place of the n-th block that all rows see whole, among those: they are visited from the last place on.
  __device__ int place(int n) const {
    if (!Config::kNearestFirst) return n;
    return whole_ - 1 - (n < near_ ? near_ - 1 - n : n);
  }

  // Finds out about the pieces, and returns the bits of those that see the block whole.
  __device__ u32 look(int block, bool is_partial, u32 early, u32 late) {
    u32 bits = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const Rows rows(args_, first_row_ + piece * kPieceRows, kPieceRows, batch_, head_);
      const int found = is_partial ? rows.verdict(block) : kEmpty;
      const bool narrow = Config::kNarrowKeys > 0 && found != kEmpty && rows.sees_narrow(block);
      if (found == kFull) bits |= 1u << (attn::kBlockBits + piece);
      pieces_[piece].add(first_whole_ == kNone ? late : early, late,
                         __ballot_sync(~0u, found != kEmpty), __ballot_sync(~0u, narrow));
    }
    return bits;
  }

  // The bits before `bit`.
  static __device__ u32 before(int bit) {
    return bit <= 0 ? 0 : bit >= kWarpSize ? ~0u : (1u << bit) - 1;
  }

  const Args& args_;
  const Rows tile_;
  const int first_row_, batch_, head_;
  u32* const entries_;
  int first_whole_ = kNone;
  int early_ = 0, whole_ = 0, late_ = 0;
  int near_ = 0;  // of the whole ones, those up to the nearest to the last row
  int listed_early_ = 0, listed_whole_ = 0, listed_late_ = 0;
  PieceOfTile pieces_[kPieces];
};

template <class Config, class Known, template <class> class SideOf, class Args>
__device__ void list_blocks(const Args& args) {
  const int tiles = (SideOf<Config>::longest(args) + Config::kTileRows - 1) / Config::kTileRows;
  const i64 list = static_cast<i64>(blockIdx.x) * (Config::kThreads / kWarpSize) + warp_id();
  const int head = static_cast<int>(list % args.list_heads);
  const int batch = static_cast<int>(list / args.list_heads / tiles);
  if (batch >= args.list_batches) return;
  ListMaker<Config, Known, SideOf, Args> maker(
      args, static_cast<int>(list / args.list_heads % tiles), batch, head,
      args.list_entries + list * args.list_stride);
  const attn::ListCounts counts = maker.run();
  if (lane_id() == 0) args.list_counts[list] = counts;
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
