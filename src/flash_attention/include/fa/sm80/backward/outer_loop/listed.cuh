// SPDX-License-Identifier: Apache-2.0
// The blocks that a CTA visits where a user's mask function decides that. A place has its number in a list.
#pragma once
#include <fa/attn/block_list.cuh>
#include <fa/backward_args.cuh>
#include <fa/sm80/backward/outer_loop/kv.cuh>
#include <fa/sm80/backward/outer_loop/q.cuh>

namespace fa::sm80::backward::outer_loop {

// The list of the tile of a CTA. `rows` are those of the longest sequence, `first` the first of the tile.
template <class Config>
__device__ attn::BlockList list_of_tile(const BackwardKernelArgs& args, int rows, int first,
                                        int head) {
  using Function = typename Config::Function;
  const int tiles = (rows + Config::kOwnRows - 1) / Config::kOwnRows;
  const int before = blockIdx.z % Function::of(args).list_batches * tiles;
  return Function::list(args, Function::list_number(args, before + first / Config::kOwnRows, head));
}

// As KV, with the blocks of queries of lists. Heads that share the keys may have different ones.
struct ListedKV {
  template <class Config>
  class Scope : public KV::Scope<Config> {
    using Base = KV::Scope<Config>;

   public:
    struct Place : Base::Place {
      int number;
      bool function_hides;
    };

    __device__ explicit Scope(const BackwardKernelArgs& args)
        : Base(args), first_(of_head(blockIdx.y * args.heads_per_kv)) {}

    __device__ bool visits_any() const { return this->visits(first_); }
    __device__ Place first() const { return first_; }
    __device__ Place after(const Place& at) {
      const int next = at.number + 1;
      return next < list_.counts.count ? place(at.head, next) : of_head(at.head + 1);
    }
    __device__ bool function_hides(const Place& at) const { return at.function_hides; }

   private:
    // The first place of a head, or of the next one that has some.
    __device__ Place of_head(int head) {
      Place at = {{head, 0}, 0, false};
      for (; this->visits(at); ++at.head) {
        list_ =
            list_of_tile<Config>(this->args(), this->args().seq_len_k, this->first_row(), at.head);
        if (list_.counts.count > 0) return place(at.head, 0);
      }
      return at;
    }
    __device__ Place place(int head, int number) const {
      const int block = attn::block_of(list_.entry(number));
      return {{head, block * Config::kVisitedRows}, number, list_.hides(number)};
    }

    attn::BlockList list_;  // of the head that is visited
    const Place first_;
  };
};

// As Q, with the blocks of keys of a list.
struct ListedQ {
  template <class Config>
  class Scope : public Q::Scope<Config> {
    using Base = Q::Scope<Config>;

   public:
    struct Place : Base::Place {
      int number;
    };

    __device__ explicit Scope(const BackwardKernelArgs& args)
        : Base(args),
          list_(list_of_tile<Config>(args, args.seq_len_q, this->first_row(), blockIdx.y)) {}

    __device__ bool visits_any() const { return list_.counts.count > 0; }
    __device__ bool visits(const Place& at) const { return at.number < list_.counts.count; }
    __device__ Place first() const { return place(0); }
    __device__ Place after(const Place& at) const { return place(at.number + 1); }
    __device__ bool function_hides(const Place& at) const { return list_.hides(at.number); }

   private:
    __device__ Place place(int number) const {
      const int block = number < list_.counts.count ? attn::block_of(list_.entry(number)) : 0;
      return {{block * Config::kVisitedRows}, number};
    }

    const attn::BlockList list_;
  };
};

}  // namespace fa::sm80::backward::outer_loop
