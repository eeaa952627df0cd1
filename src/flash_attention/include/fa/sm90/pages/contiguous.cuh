// SPDX-License-Identifier: Apache-2.0
// The keys of a sequence are contiguous in their tensor.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/tma.cuh>

namespace fa::sm90::pages {

struct Contiguous {
  template <int BlockKeys>
  static constexpr int kBoxKeys = BlockKeys;  // of a tensor map

  template <class KVTile>
  static __device__ void load(KVTile tile, const TensorMap& map, ptx::Mbarrier full, int kv_head,
                              int key, int /*batch*/, const attn::Sequence& sequence,
                              const ForwardKernelArgs&, int first_column = 0) {
#pragma unroll
    for (int p = 0; p < KVTile::kCount; ++p)
      ptx::tma_load_4d(tile.panel(p), map, full, first_column + p * KVTile::kColumns, kv_head,
                       sequence.k_first + key, sequence.k_batch);
  }
};

}  // namespace fa::sm90::pages
