// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q, k and v. O is stored from registers.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::wide {

struct TensorMaps {
  const TensorMap &q, &k, &v;

  __device__ void prefetch() const {
    ptx::tma_prefetch_map(q);
    ptx::tma_prefetch_map(k);
    ptx::tma_prefetch_map(v);
  }
};

}  // namespace fa::sm90::wide
