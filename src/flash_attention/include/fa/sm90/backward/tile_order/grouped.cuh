// SPDX-License-Identifier: Apache-2.0
// One CTA per tile. Heads are processed in groups whose queries stay in L2. Within a group the first
// keys come first: under a causal mask most queries see them, so short tiles come last.
#pragma once
#include <fa/sm90/backward/one_tile.cuh>

namespace fa::sm90::backward::tile_order {

struct Grouped {
  template <class Config>
  using Walk = OneTile<Config, Config::kGroupHeads>;
};

}  // namespace fa::sm90::backward::tile_order
