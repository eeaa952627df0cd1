// SPDX-License-Identifier: Apache-2.0
// Q is not prefetched: it is loaded when its buffer is empty.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::queries {

struct OnDemand {
  template <class Producer>
  static __device__ void expect(const Producer&, Tile) {}
};

}  // namespace fa::sm90::queries
