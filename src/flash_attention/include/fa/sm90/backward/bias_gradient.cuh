// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias, which is dS: the warpgroup of dQ has the copy engine store the tiles that it reads.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// `Place` says where in a tensor [outer, inner, queries, keys] the tiles of a head go.
template <class Place>
struct ByTiles {
  template <class Config>
  class Of {
    using Smem = SharedMemory<Config>;
    using ScoreTile = typename Shape<Config>::ScoreTile;

   public:
    __device__ Of(const TensorMaps& maps, const BackwardKernelArgs& args)
        : map_(*maps.bias_gradient), args_(args) {}
    __device__ void begin_tile(Mailbox mail) { head_ = mail.read(Word::kHead); }
    __device__ void next_head() { ++head_; }

    // One thread stores the dS of the queries from `query` on. Elements outside of the tensor are skipped.
    __device__ void store(Mailbox mail, int stage, int query) const {
      const auto plane = Place::template plane<Config>(args_, mail.read_alone(Word::kBatch), head_);
      const int key = mail.read_alone(Word::kKeyFirst) - args_.part_key;
#pragma unroll
      for (int p = 0; p < ScoreTile::kCount; ++p)
        ptx::tma_store_4d(map_, Smem::ds(stage).panel(p), key + p * ScoreTile::kColumns, query,
                          plane.inner, plane.outer);
      ptx::tma_commit();
    }
    // The same thread waits until the copy engine has read it.
    __device__ void wait_read() const { ptx::tma_wait_read(); }

   private:
    const TensorMap& map_;
    const BackwardKernelArgs& args_;
    int head_;
  };
};

struct InGradient {
  template <class Config>
  static __device__ attn::function::Plane plane(const BackwardKernelArgs& args, int batch,
                                                int head) {
    return Config::Function::gradient_plane(args, batch, head);
  }
};

struct InWorkspace {
  template <class Config>
  static __device__ attn::function::Plane plane(const BackwardKernelArgs&, int batch, int head) {
    return {head, batch};
  }
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::bias_gradient {

// Every element is read by one score: tiles of dS are the gradient.
struct Stored : ByTiles<InGradient> {};

// Heads share elements: tiles of dS leave for a workspace [batch, heads, queries, keys of the part], and another
// kernel adds them up.
struct Summed : ByTiles<InWorkspace> {};

}  // namespace fa::sm90::backward::bias_gradient
