// SPDX-License-Identifier: Apache-2.0
// The arguments of kernels with a function of a user.
#pragma once
#include <fa/attn/block_list.cuh>
#include <fa/attn/function.cuh>
#include <fa/attn/nearest_first.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>

namespace fa::attn {

// Those of a pass, and of the function. traced_args.py mirrors them.
template <class Base, class Program>
struct WithFunction : Base {
  u32* list_entries;        // [lists, list_stride], the blocks that a tile visits
  ListCounts* list_counts;  // [lists]
  void* bounds;             // minima and maxima of captured tensors
  int list_stride;          // the most entries of a list
  int list_batches;         // sequences that have lists of their own, or 1 for all
  int list_heads;           // heads that have, or 1
  int absolute;             // a function counts queries so that the last one is at the last key
  typename Program::Args program;
};

// What a function with these arguments says of tiles.
template <class Program>
struct FunctionArguments {
  template <class Args>
  static __device__ const auto& of(const Args& args) {
    return static_cast<const WithFunction<Args, Program>&>(args);
  }

  template <class Args>
  static __device__ int list_number(const Args& args, int tile, int head) {
    return attn::list_number(of(args), tile, head);
  }
  template <class Args>
  static __device__ BlockList list(const Args& args, int number) {
    return list_of(of(args), number);
  }
  template <class Args>
  static __device__ u32 list_entry(const Args& args, int number, int place) {
    return __ldg(list_entries(of(args), number) + place);
  }
  static __device__ int block(u32 entry) { return block_of(entry); }
  template <class Args>
  static __device__ ListedKeys listed_keys(const Args& args, int tile, int head) {
    return {list(args, list_number(args, tile, head))};
  }
  template <int Queries, int BlockKeys, class Args>
  static __device__ NearestFirst<Queries, BlockKeys> nearest_keys(const Args& args, int tile,
                                                                  const Sequence& sequence) {
    return {(tile + 1) * Queries - 1 + ahead(args, sequence), sequence.k_len};
  }
  template <class Args>
  static __device__ int ahead(const Args& args, const Sequence& sequence) {
    return of(args).absolute ? sequence.k_len - sequence.q_len : 0;
  }

  // The plane of the bias whose elements scores of a head read.
  template <class Args>
  static __device__ function::Plane plane(const Args& args, int batch, int head) {
    return Program::plane(of(args).program, batch, head);
  }
  // The same of its gradient, which has planes of its own also where the bias has not.
  template <class Args>
  static __device__ function::Plane gradient_plane(const Args& args, int batch, int head) {
    return Program::gradient_plane(of(args).program, batch, head);
  }
};

}  // namespace fa::attn
