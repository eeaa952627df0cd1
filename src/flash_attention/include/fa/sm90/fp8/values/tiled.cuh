// SPDX-License-Identifier: Apache-2.0
// A kernel before this one has transposed V into tiles (value_tile.cuh). The tiles have the keys in the
// order of P, so the columns of S are the keys in their own order.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/value_tile.cuh>

namespace fa::sm90::fp8::values {

struct Tiled {
  using Maps = TensorMaps;
  using KeyOrder = attn::InOrder;
  template <int DHead, int SumRows, int Keys>
  using Tile = ValueTile<DHead + SumRows, Keys>;

  // The scores of a lane whose weights are four bytes of the n-th 16 keys of the A operand.
  template <int Keys>
  static __device__ Four scores(const Accumulator<16, Keys>& s, int n, int h) {
    return concatenated(s.v[0][2 * n], s.v[0][2 * n + 1], h);
  }
  // The columns of O from 16 d + 4 (lane % 4) on.
  template <int DHead, int Columns>
  static __device__ Four outputs(const Accumulator<16, Columns>& o, int d, int h) {
    return interleaved(o.v[0][2 * d], o.v[0][2 * d + 1], h);
  }

  // The tiles have the rows for sums.
  template <class Config, class Smem>
  static __device__ void write_sums(const Smem&) {}

  // The tiles have zeros after the last key.
  template <class Config, class VTile, class Range, class Wait>
  static __device__ void clear_tail(VTile, const Range&, int /*k_len*/, Wait) {}

  static __device__ void before_loads(const Maps&) {
    ptx::wait_for_grid();  // V is transposed
  }

  // Loads blocks of a head of K and V, from `last_block` on. V is one thread's.
  template <class Config>
  class Source {
   public:
    __device__ Source(const Maps& maps, const Fp8KernelArgs& args, const attn::Sequence& sequence,
                      int batch, int kv_head, int last_block)
        : keys_(maps.k, args, sequence, batch, kv_head, last_block),
          tiles_(static_cast<const char*>(args.v_tiles) +
                 first_in_tiles<typename Config::Lengths>(args, batch, kv_head) *
                     (Config::kDHead + Config::Sums::kRows)) {}

    template <class KTile>
    __device__ void load_k(KTile to, ptx::Mbarrier full, int block) {
      keys_.load(to, full, block);
    }
    template <class VTile>
    __device__ void load_v(VTile to, ptx::Mbarrier full, int block) const {
      ptx::bulk_load(to.address, tiles_ + static_cast<i64>(block) * VTile::kBytes, VTile::kBytes,
                     full);
    }

   private:
    typename Config::Pages::template Keys<Config> keys_;
    const char* const tiles_;
  };
};

}  // namespace fa::sm90::fp8::values
