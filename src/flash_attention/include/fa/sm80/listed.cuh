// SPDX-License-Identifier: Apache-2.0
// The key blocks of a CTA where a user's mask function decides which of them are visited.
#pragma once
#include <fa/attn/block_list.cuh>
#include <fa/attn/kv_order.cuh>
#include <fa/forward_args.cuh>
#include <fa/sm80/predication.cuh>

namespace fa::sm80::predication {

// The key blocks of a list: a mask function hides all others, and shows some whole. `Base` says what their rows are.
template <class Config, class Base>
class ListedScope : public Base {
 public:
  __device__ explicit ListedScope(const ForwardKernelArgs& args)
      : Base(args), keys_(Config::Function::listed_keys(args, tile(args), blockIdx.y)) {}

  // If the list is empty, the first block is visited, of which no key is seen.
  __device__ int num_steps() const { return max(keys_.end_block(), 1); }
  __device__ int key(int step) const {
    const int place = Config::KvOrder::block(step, num_steps());
    return keys_.end_block() > 0 ? keys_.key_block(place) * Config::kBC : 0;
  }
  __device__ attn::Place place(int row, int step) const { return this->at(row, key(step)); }
  __device__ bool function_hides(int step) const {
    const int place = Config::KvOrder::block(step, num_steps());
    return keys_.list.hides(place);
  }

 private:
  // Its number in a head, of all sequences that have lists of their own.
  __device__ int tile(const ForwardKernelArgs& args) const {
    const int tiles = (args.seq_len_q + Config::kBR - 1) / Config::kBR;
    return blockIdx.z % Config::Function::of(args).list_batches * tiles +
           this->first_row() / Config::kBR;
  }

  const attn::ListedKeys keys_;
};

// As On, with the blocks of a list.
struct Listed {
  template <class Config>
  using Scope = ListedScope<Config, On::Scope<Config>>;
};

// As Paged, with the blocks of a list.
template <int PageKeys>
struct ListedPaged {
  template <class Config>
  using Scope = ListedScope<Config, typename Paged<PageKeys>::template Scope<Config>>;
};

}  // namespace fa::sm80::predication
