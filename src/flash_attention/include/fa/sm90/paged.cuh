// SPDX-License-Identifier: Apache-2.0
// The slot Pages for a paged KV cache that one thread loads, page by page.
#pragma once
#include <fa/sm90/page_numbers.cuh>
#include <fa/sm90/producer.cuh>

namespace fa::sm90::pages {

// A paged KV cache: the keys of a sequence are in pages of `PageKeys` rows, which a block table lists.
// Beyond the last key its page is loaded again; these rows are masked or cleared.
template <int PageKeys>
struct Paged : OneProducer {
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

// A paged KV cache whose boxes have few keys, down to one. Several entries of the block table are read
// ahead of their boxes, because every read waits for memory. Beyond the last key its page is loaded again;
// these rows are masked or cleared.
template <int PageKeys>
struct SmallPaged : OneProducer {
  template <int BlockKeys>
  static constexpr int kBoxKeys = common_divisor(PageKeys, BlockKeys);  // of a tensor map

  template <class KVTile>
  static __device__ void load(KVTile tile, const TensorMap& map, ptx::Mbarrier full, int kv_head,
                              int key, int batch, const attn::Sequence& sequence,
                              const ForwardKernelArgs& args, int first_column = 0) {
    constexpr int kBox = kBoxKeys<KVTile::kRows>;
    constexpr int kAhead = common_divisor(KVTile::kRows / kBox, 4);  // more would spill
    static_assert(kBox * KVTile::kRowBytes % 128 == 0, "TMA writes to multiples of 128 bytes");
    const int* const table = args.block_table + batch * args.block_table_stride;
#pragma unroll 1
    for (int first = 0; first < KVTile::kRows; first += kAhead * kBox) {
      int pages[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        pages[i] = table[min(key + first + i * kBox, sequence.k_len - 1) / PageKeys];
#pragma unroll 1
      for (int p = 0; p < KVTile::kCount; ++p)
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int k = first + i * kBox;
          ptx::tma_load_4d(tile.panel(p) + k * KVTile::kRowBytes, map, full,
                           first_column + p * KVTile::kColumns, kv_head, (key + k) % PageKeys,
                           pages[i]);
        }
    }
  }
};

}  // namespace fa::sm90::pages
