// SPDX-License-Identifier: Apache-2.0
// A traced function of a user in the slot Function. `Program` is what the function was printed as: values
// that need the head, the query or the key alone are computed once for all elements that share these.
#pragma once
#include <fa/attn/block_list.cuh>
#include <fa/attn/function.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>

namespace fa::attn {

// The arguments of a kernel with a function. traced_args.py mirrors them.
template <class Base, class Program>
struct WithFunction : Base {
  int* list_entries;  // [lists, list_stride], the blocks that a tile visits
  int* list_counts;   // [lists, 2], how many of them all rows see whole, and how many there are
  void* bounds;       // minima and maxima of captured tensors
  int list_stride;    // the most entries of a list
  int list_batches;   // sequences that have lists of their own, or 1 for all
  int list_heads;     // heads that have, or 1
  int absolute;       // a function counts queries so that the last one is at the last key
  typename Program::Args program;
};

}  // namespace fa::attn

namespace fa::attn::user_function {

template <class Program, bool Listed>
struct Traced {
  static constexpr bool kScores = Program::kHasScore;
  static constexpr bool kMasks = Program::kHasMask;
  static constexpr bool kSlopes = kScores && !Program::kSlopeIsOne;
  static constexpr bool kListed = Listed;

  template <class Args>
  static __device__ const auto& of(const Args& args) {
    return static_cast<const WithFunction<Args, Program>&>(args);
  }

  // The list of a tile: see block_list.cuh.
  template <class Args>
  static __device__ int list_number(const Args& args, int tile, int head) {
    return attn::list_number(of(args), tile, head);
  }
  template <class Args>
  static __device__ BlockList list(const Args& args, int number) {
    return list_of(of(args), number);
  }
  template <class Args>
  static __device__ ListedKeys listed_keys(const Args& args, int tile, int head) {
    return {list(args, list_number(args, tile, head))};
  }

  template <class Args>
  static __device__ int ahead(const Args& args, const Sequence& sequence) {
    return of(args).absolute ? sequence.k_len - sequence.q_len : 0;
  }

  // Scaled scores become those of the function.
  template <RowsOf Side, class Rows, class Scores, class Args>
  static __device__ void change(Scores& s, float scale, const Args& args, const Place& at) {
    if constexpr (kScores)
      each<Side, Rows, Scores::kColFragments>(of(args).program, at, [&](int j, int e, At from) {
        float& x = s.v[0][j][e];
        x = Program::score(from.args, from.of_head, from.of_query, from.of_key, x * scale,
                           from.batch, from.head, from.query, from.key);
      });
  }

  // Elements that the mask does not show become `hidden`.
  template <RowsOf Side, class Rows, class Scores, class Args>
  static __device__ void hide(Scores& s, float hidden, const Args& args, const Place& at) {
    if constexpr (kMasks)
      each<Side, Rows, Scores::kColFragments>(of(args).program, at, [&](int j, int e, At from) {
        const bool is_seen = Program::mask(from.args, from.of_head, from.of_query, from.of_key,
                                           from.batch, from.head, from.query, from.key);
        if (!is_seen) s.v[0][j][e] = hidden;
      });
  }

  // The derivatives of changed scores by the scaled ones. Rows are keys.
  template <class Scores, class Args>
  static __device__ void slopes(Scores& to, const Scores& s, float scale, const Args& args,
                                const Place& at) {
    if constexpr (kSlopes)
      each<RowsOf::kKeys, rows::OneHead, Scores::kColFragments>(
          of(args).program, at, [&](int j, int e, At from) {
            to.v[0][j][e] =
                Program::slope(from.args, from.of_head, from.of_query, from.of_key,
                               s.v[0][j][e] * scale, from.batch, from.head, from.query, from.key);
          });
  }

 private:
  // What the function knows at an element.
  struct At {
    const typename Program::Args& args;
    const typename Program::OfHead& of_head;
    const typename Program::OfQuery& of_query;
    const typename Program::OfKey& of_key;
    int batch, head, query, key;
  };

  // Calls `visit(j, e, at)` for the elements of a lane.
  template <RowsOf Side, class Rows, int Columns, class Visit>
  static __device__ void each(const typename Program::Args& args, const Place& at, Visit visit) {
    const int row = lane_id() / 4, column = 2 * (lane_id() % 4);
    if constexpr (Side == RowsOf::kQueries) {
      typename Program::OfHead of_head[2];
      typename Program::OfQuery of_query[2];
      int head[2], query[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        head[h] = Rows::head(at.head, at.query + row + 8 * h);
        query[h] = Rows::position(at.query + row + 8 * h) + at.ahead;
        of_head[h] = Program::of_head(args, at.batch, head[h]);
        of_query[h] = Program::of_query(args, of_head[h], at.batch, head[h], query[h]);
      }
#pragma unroll
      for (int n = 0; n < 4 * Columns; ++n) {
        const int j = n / 4, h = n % 2, e = n / 2 % 2, key = at.key + 8 * j + column + e;
        const auto of_key = Program::of_key(args, of_head[h], at.batch, head[h], key);
        visit(j, 2 * h + e,
              At{args, of_head[h], of_query[h], of_key, at.batch, head[h], query[h], key});
      }
    } else {
      const auto of_head = Program::of_head(args, at.batch, at.head);
      typename Program::OfKey of_key[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        of_key[h] = Program::of_key(args, of_head, at.batch, at.head, at.key + row + 8 * h);
#pragma unroll
      for (int n = 0; n < 4 * Columns; ++n) {
        const int j = n / 4, h = n % 2, e = n / 2 % 2, key = at.key + row + 8 * h;
        const int query = at.query + 8 * j + column + e + at.ahead;
        const auto of_query = Program::of_query(args, of_head, at.batch, at.head, query);
        visit(j, 2 * h + e, At{args, of_head, of_query, of_key[h], at.batch, at.head, query, key});
      }
    }
  }
};

}  // namespace fa::attn::user_function
