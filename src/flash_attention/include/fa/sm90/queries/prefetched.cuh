// SPDX-License-Identifier: Apache-2.0
// Q is prefetched into L2 as soon as its tile is known, while the previous tile is computed.
#pragma once
#include <fa/sm90/tile.cuh>

namespace fa::sm90::queries {

struct Prefetched {
  template <class Producer>
  static __device__ void expect(const Producer& producer, Tile tile) {
    producer.prefetch_q(tile);
  }
};

}  // namespace fa::sm90::queries
