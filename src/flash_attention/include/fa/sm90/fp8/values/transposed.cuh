// SPDX-License-Identifier: Apache-2.0
// The caller's V has contiguous keys, and TMA loads it as it is. The order of the bytes of the A operand is
// then that of the keys: of every 16 keys, lane t of a quad has bytes 4 t to 4 t + 3. Of the accumulators it has
// columns 8 j + 2 t + e (e 0 or 1) of every fragment j. P stays in these registers because K is loaded so
// that they are the right keys: TMA puts the even keys of a block first, then the odd ones. Column c of the
// first half is key 2 c, so element e of fragment n is key 16 n + 4 t + 2 e, and the same element of fragment
// n + keys / 16, in the second half, is the key after it. The four are the bytes of the operand, without a shuffle.
//
// The columns of V are loaded in the same order, so that a lane's outputs are four neighbours, too.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/value_tile.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::fp8::values {

struct EvenKeysFirst {
  static constexpr int kLaneKeys = 4;
  template <int Columns>
  static __device__ constexpr int key(int j, int e) {
    constexpr int kHalf = Columns / 16;  // fragments with even keys
    return 16 * (j % kHalf) + 2 * e + j / kHalf;
  }
};

struct Transposed {
  using Maps = TensorMapsWithValues;
  using KeyOrder = EvenKeysFirst;

  // A row is a column of V; the last ones are for sums. In bytes it is a 16-bit tile of half the keys.
  template <int DHead, int SumRows, int Keys>
  struct Tile : SharedTile<Keys / 2, DHead + SumRows> {
    using Base = SharedTile<Keys / 2, DHead + SumRows>;
    using Operand = typename Base::RowOperand;
    static constexpr int kLoadedBytes = Base::kCount * DHead * Base::kRowBytes;
    static_assert(Base::kCount * Base::kRowBytes == Keys, "panels have no gaps");

    using Base::Base;
    __device__ Operand operand() const { return Base::row_operand(); }
  };

  template <int Keys>
  static __device__ Four scores(const Accumulator<16, Keys>& s, int n, int h) {
    return interleaved(s.v[0][n], s.v[0][n + Keys / 16], h);
  }
  template <int DHead, int Columns>
  static __device__ Four outputs(const Accumulator<16, Columns>& o, int d, int h) {
    return interleaved(o.v[0][d], o.v[0][d + DHead / 16], h);
  }

  // Writes the rows for sums of all stages. No load overwrites them.
  template <class Config, class Smem>
  static __device__ void write_sums(const Smem& smem) {
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage) {
      const auto tile = smem.v(stage);
#pragma unroll
      for (int p = 0; p < tile.kCount; ++p)
        Config::Sums::template write_rows<tile.kRowBytes>(tile.panel(p) +
                                                          Config::kDHead * tile.kRowBytes);
    }
  }

  // What follows the last key of a sequence may hold anything. All consumers clear it in the first block of a
  // tile, for which `wait` waits, whether their rows see the block or not.
  template <class Config, class VTile, class Range, class Wait>
  static __device__ void clear_tail(VTile tile, const Range& visited, int k_len, Wait wait) {
    if constexpr (Config::Lengths::kPerBatch) {
      const int keys = k_len - (visited.end_block() - 1) * Config::kBC;
      const bool any = visited.end_block() > visited.first_block() && keys < Config::kBC;
      if (!__any_sync(~0u, any)) return;
      wait();  // what is cleared has been loaded
      clear_keys<Config>(tile, keys);
      sync_consumers<Config>();  // all have stored their zeros
    }
  }

  static __device__ void before_loads(const Maps& maps) { ptx::tma_prefetch_map(maps.v); }

  template <class Config>
  class Source {
    static_assert(!Config::Pages::kByWarp, "one thread loads V");

   public:
    __device__ Source(const Maps& maps, const Fp8KernelArgs&, const attn::Sequence&, int batch,
                      int kv_head, int /*last_block*/)
        : maps_(maps), batch_(batch), kv_head_(kv_head) {}

    template <class KTile>
    __device__ void load_k(KTile to, ptx::Mbarrier full, int block) const {
#pragma unroll
      for (int p = 0; p < KTile::kCount; ++p)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)  // a box has every other key
          ptx::tma_load_4d(to.panel(p) + odd * (Config::kBC / 2) * KTile::kRowBytes, maps_.k, full,
                           p * KTile::kRowBytes, kv_head_, block * Config::kBC + odd, batch_);
    }
    template <class VTile>
    __device__ void load_v(VTile to, ptx::Mbarrier full, int block) const {
      static_assert(Config::kPanelKeys == VTile::kRowBytes, "keys of a box");
#pragma unroll
      for (int p = 0; p < VTile::kCount; ++p)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)  // a box has every other column
          ptx::tma_load_4d(to.panel(p) + odd * (Config::kDHead / 2) * VTile::kRowBytes, maps_.v,
                           full, block * Config::kBC + p * VTile::kRowBytes, kv_head_, odd, batch_);
    }

   private:
    const Maps& maps_;
    const int batch_, kv_head_;
  };

 private:
  // Clears the keys of a block from `keys` on. A thread has whole rows.
  template <class Config, class VTile>
  static __device__ void clear_keys(VTile tile, int keys) {
    constexpr int kChunks = Config::kBC / kChunkBytes;
    const int first = keys / kChunkBytes, kept = keys % kChunkBytes;
    for (int row = threadIdx.x - kWarpgroupSize; row < Config::kDHead;
         row += Config::kConsumers * kWarpgroupSize) {
      const ptx::Chunk c = ptx::ld_shared_16(tile.chunk(row, first));
      ptx::st_shared_16(tile.chunk(row, first),
                        {first_bytes(c.x, kept), first_bytes(c.y, kept - 4),
                         first_bytes(c.z, kept - 8), first_bytes(c.w, kept - 12)});
      for (int chunk = first + 1; chunk < kChunks; ++chunk)
        ptx::st_shared_16(tile.chunk(row, chunk), {0, 0, 0, 0});
    }
    ptx::fence_proxy_async();  // the products see the zeros
  }
  // The first `count` bytes of a word; the others become zeros.
  static __device__ u32 first_bytes(u32 word, int count) {
    return count >= 4 ? word : count <= 0 ? 0 : word & ((1u << 8 * count) - 1);
  }
};

}  // namespace fa::sm90::fp8::values
