// SPDX-License-Identifier: Apache-2.0
// Sequences differ in length, and q is packed.
#pragma once
#include <fa/attn/lengths/per_batch.cuh>

namespace fa::attn::lengths {

struct PackedQueries : PerBatch {
  static constexpr bool kPackedQueries = true;
};

}  // namespace fa::attn::lengths
