// SPDX-License-Identifier: Apache-2.0
// The sequences of a call: the slot Lengths says how long each is and where it is in its tensors, the slot
// Rows which query of which head a row of a tile is, the slot Dropout which keys a query drops, and the slot
// Function what a user's score and mask functions do to scores.
#pragma once
#include <fa/core.cuh>

namespace fa::attn {

// The last of `count` sequences that starts at `place` or before it. `start(n)` never falls.
template <class Start>
__device__ int sequence_at(int place, int count, Start start) {
  int found = 0;
  for (int end = count; end - found > 1;) {
    const int middle = (found + end) / 2;
    if (start(middle) <= place)
      found = middle;
    else
      end = middle;
  }
  return found;
}

// The numbers of the blocks of packed sequences, with `Rows` rows each. The host does not know how many rows
// each sequence has, and no kernel counts the blocks of all sequences: the first block of a sequence has a
// number that leaves room for the blocks of all sequences before it. Some numbers stay without a block.
template <int Rows>
struct PackedBlocks {
  const int* cu_seqlens;
  int longest, sequences;

  // A sequence of n rows has at most (n + Rows - 1) / Rows blocks, and none has more than the longest.
  __device__ int first(int sequence) const {
    const i64 of_longest = (longest + Rows - 1) / Rows;
    const i64 rows = cu_seqlens[sequence] + static_cast<i64>(sequence) * (Rows - 1);
    return static_cast<int>(min(sequence * of_longest, rows / Rows));
  }
  __device__ int count() const { return first(sequences); }
  __device__ int sequence(int block) const {
    return sequence_at(block, sequences, [this](int sequence) { return first(sequence); });
  }
};

// One sequence: the number of its queries and keys, the rows before it in their tensors, and its
// index along their batch dimensions.
struct Sequence {
  int q_len, k_len;
  int q_first, k_first;
  int q_batch, k_batch;
};

template <class T>
concept LengthsSlot = requires(const CallArgs& args, int batch) {
  { T::kPerBatch } -> Same<const bool&>;
  { T::kPackedQueries } -> Same<const bool&>;
  { T::kLeastQueries } -> Same<const int&>;
  { T::q_len(args, batch) } -> Same<int>;
  { T::sequence(args, batch) } -> Same<Sequence>;
};

template <class T>
concept RowsSlot = requires(int row) {
  { T::kGroup } -> Same<const int&>;
  { T::position(row) } -> Same<int>;
  { T::head(row, row) } -> Same<int>;
};

// What the rows of an accumulator are.
enum class RowsOf { kQueries, kKeys };

// draw: the decisions on the weights of 16 rows and `16 * Tiles` columns, from `row` and `column` on. clear:
// zeros in the pairs of tile n that are dropped. kept: a number of word `word` of pair e, or zero.
template <class T>
concept DropoutSlot = requires(T& dropout, const CallArgs& args, u32 (&pairs)[4],
                               typename T::template Dropped<RowsOf::kQueries, 1>& dropped) {
  { T::kDrops } -> Same<const bool&>;
  { T::scale(args) } -> Same<float>;
  dropout.begin_head(0);
  dropout.next_head();
  dropout.draw(dropped, 0, 0, args);
  dropped.clear(pairs, 0);
  { dropped.kept(1.f, 0, 0, 0) } -> Same<float>;
};

// Where 16 rows of scores are: their sequence, the head of their tile, and the first row and key. A function
// counts queries `ahead` places further than the tensor of q does.
struct Place {
  int batch, head;
  int query, key;
  int ahead;
};

template <class T>
concept FunctionSlot = requires {
  { T::kScores } -> Same<const bool&>;
  { T::kMasks } -> Same<const bool&>;
  { T::kSlopes } -> Same<const bool&>;
  { T::kListed } -> Same<const bool&>;
  { T::kGathers } -> Same<const bool&>;
};

// The factor of the scores that the softmax sees: those of a score function have theirs already.
template <class Config, class Args>
__device__ float score_scale(const Args& args) {
  return Config::Function::kScores ? 1.f : Config::Score::scale(args);
}

}  // namespace fa::attn

namespace fa::attn::lengths {

// All sequences are as long as their tensors.
struct Same {
  static constexpr bool kPerBatch = false;
  static constexpr bool kPackedQueries = false;
  static constexpr int kLeastQueries = 0;

  static __device__ int q_len(const CallArgs& args, int /*batch*/) { return args.seq_len_q; }
  static __device__ Sequence sequence(const CallArgs& args, int batch) {
    return {args.seq_len_q, args.seq_len_k, 0, 0, batch, batch};
  }
};

// Sequences differ in length. Packed tensors hold the sequences one after the other, without a batch
// dimension; cu_seqlens says where each one starts and where the last one ends. seqused_k may reduce
// the number of keys of a sequence.
struct PerBatch {
  static constexpr bool kPerBatch = true;
  static constexpr bool kPackedQueries = false;
  static constexpr int kLeastQueries = 0;

  static __device__ int q_len(const CallArgs& args, int batch) {
    if (!args.cu_seqlens_q) return args.seq_len_q;
    return args.cu_seqlens_q[batch + 1] - args.cu_seqlens_q[batch];
  }
  static __device__ Sequence sequence(const CallArgs& args, int batch) {
    Sequence sequence = {q_len(args, batch), args.seq_len_k, 0, 0, batch, batch};
    if (args.cu_seqlens_q) {
      sequence.q_first = args.cu_seqlens_q[batch];
      sequence.q_batch = 0;
    }
    if (args.cu_seqlens_k) {
      sequence.k_first = args.cu_seqlens_k[batch];
      sequence.k_len = args.cu_seqlens_k[batch + 1] - sequence.k_first;
      sequence.k_batch = 0;
    }
    if (args.seqused_k) sequence.k_len = args.seqused_k[batch];
    return sequence;
  }
};

// Sequences differ in length, and q is packed.
struct PackedQueries : PerBatch {
  static constexpr bool kPackedQueries = true;
};

}  // namespace fa::attn::lengths

namespace fa::attn::rows {

// The rows of a tile are queries of one head, one after the other.
struct OneHead {
  static constexpr int kGroup = 1;  // heads in a tile

  static __device__ int position(int row) { return row; }
  static __device__ int head(int tile_head, int /*row*/) { return tile_head; }
};

// All heads that share a head of K and V share a tile: row r is head r % Group of query r / Group. A
// few queries then fill a tile, and K and V are read once for all of these heads.
template <int Group>
struct GroupedHeads {
  static constexpr int kGroup = Group;

  static __device__ int position(int row) { return row / Group; }
  static __device__ int head(int tile_head, int row) { return tile_head * Group + row % Group; }
};

}  // namespace fa::attn::rows

namespace fa::attn::dropout {

// All weights are kept.
struct None {
  static constexpr bool kDrops = false;

  template <RowsOf Side, int Tiles>
  struct Dropped {
    __device__ void clear(u32 (&)[4], int /*n*/) const {}
    __device__ float kept(float x, int /*n*/, int /*e*/, int /*word*/) const { return x; }
  };

  template <class Args>
  static __device__ float scale(const Args&) {
    return 1.f;
  }
  __device__ void begin_head(int /*head_of_all*/) {}
  __device__ void next_head() {}
  template <RowsOf Side, int Tiles, class Args>
  __device__ void draw(Dropped<Side, Tiles>&, int /*row*/, int /*column*/, const Args&) const {}
};

}  // namespace fa::attn::dropout

namespace fa::attn::user_function {

// Scores and masks are the kernel's own.
struct None {
  static constexpr bool kScores = false;
  static constexpr bool kMasks = false;
  static constexpr bool kSlopes = false;        // the derivatives of its scores differ from 1
  static constexpr bool kListed = false;        // tiles visit the blocks of lists
  static constexpr bool kGathers = false;       // gradients of captured tensors are computed
  static constexpr bool kTilts = false;         // the distance times a factor is added to scores
  static constexpr bool kNearestFirst = false;  // scores fall with the distance
  static constexpr bool kBias = false;          // TMA loads what it reads of a captured tensor

  template <class Args>
  static __device__ int ahead(const Args&, const Sequence&) {
    return 0;
  }
  template <class Rows>
  struct OfQueries {
    template <class Args>
    __device__ void begin(const Args&, const Place&) {}
    template <class Scores, class Args>
    __device__ void change(Scores&, float /*scale*/, const Args&, const Place&) const {}
    template <class Scores, class Args>
    __device__ void hide(Scores&, float /*hidden*/, const Args&, const Place&) const {}
    template <class RowEnds, class Args>
    __device__ void complete(RowEnds&, const Args&, const Place&) const {}
  };
  struct OfKeys {
    template <class Scores>
    struct Kept {};
    template <class Args>
    __device__ void begin(const Args&, int /*batch*/, int /*head*/) {}
  };
};

}  // namespace fa::attn::user_function

namespace fa::attn {

// Scores or dropout depend on where a block is, whether or not a mask hides some of it.
template <class Config>
inline constexpr bool kNeedsPlaces = Config::Function::kScores || Config::Dropout::kDrops;

}  // namespace fa::attn
