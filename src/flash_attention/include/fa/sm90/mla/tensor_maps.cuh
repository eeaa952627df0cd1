// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q and k. V is part of K, and O is stored from registers.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::mla {

struct TensorMaps {
  const TensorMap &q, &k;

  __device__ void prefetch() const {
    ptx::tma_prefetch_map(q);
    ptx::tma_prefetch_map(k);
  }
};

}  // namespace fa::sm90::mla
