// SPDX-License-Identifier: Apache-2.0
// Dealt for packed queries.
#pragma once
#include <fa/sm90/halves/with_queries.cuh>
#include <fa/sm90/tile_order/dealt.cuh>

namespace fa::sm90::halves::tile_order {

struct PackedDealt : WithQueries<sm90::tile_order::Dealt> {};

}  // namespace fa::sm90::halves::tile_order
