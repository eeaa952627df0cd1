// SPDX-License-Identifier: Apache-2.0
// Q is brought into L2 as soon as its tile is known, while the tile before is computed.
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
