// SPDX-License-Identifier: Apache-2.0
// A paged KV cache: the keys of a sequence are in pages of `PageKeys` rows, which a block table lists.
// Beyond the last key its page is loaded again; these rows are masked or cleared.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/common_divisor.cuh>

namespace fa::sm90::pages {

template <int PageKeys>
struct Paged {
  template <int BlockKeys>
  static constexpr int kBoxKeys = common_divisor(PageKeys, BlockKeys);  // of a tensor map

  template <class KVTile>
  static __device__ void load(KVTile tile, const TensorMap& map, ptx::Mbarrier full, int kv_head,
                              int key, int batch, const attn::Sequence& sequence,
                              const ForwardKernelArgs& args, int first_column = 0) {
    constexpr int kBox = kBoxKeys<KVTile::kRows>;
    static_assert(KVTile::kRows % kBox == 0 && PageKeys % kBox == 0);
    const int* const table = args.block_table + batch * args.block_table_stride;
#pragma unroll 1
    for (int k = 0; k < KVTile::kRows; k += kBox) {
      const int page = min(key + k, sequence.k_len - 1) / PageKeys;
#pragma unroll
      for (int p = 0; p < KVTile::kCount; ++p)
        ptx::tma_load_4d(tile.panel(p) + k * KVTile::kRowBytes, map, full,
                         first_column + p * KVTile::kColumns, kv_head, (key + k) % PageKeys,
                         table[page]);
    }
  }
};

}  // namespace fa::sm90::pages
