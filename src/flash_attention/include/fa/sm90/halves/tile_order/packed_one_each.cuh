// SPDX-License-Identifier: Apache-2.0
// OneEach for packed queries.
#pragma once
#include <fa/sm90/halves/with_queries.cuh>
#include <fa/sm90/tile_order/one_each.cuh>

namespace fa::sm90::halves::tile_order {

struct PackedOneEach : WithQueries<sm90::tile_order::OneEach> {};

}  // namespace fa::sm90::halves::tile_order
