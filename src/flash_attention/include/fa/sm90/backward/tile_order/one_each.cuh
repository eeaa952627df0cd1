// SPDX-License-Identifier: Apache-2.0
// One CTA per tile: the tiles of a head one after the other. The hardware schedules them.
#pragma once
#include <fa/sm90/backward/one_tile.cuh>

namespace fa::sm90::backward::tile_order {

struct OneEach {
  template <class Config>
  using Walk = OneTile<Config, 1>;
};

}  // namespace fa::sm90::backward::tile_order
