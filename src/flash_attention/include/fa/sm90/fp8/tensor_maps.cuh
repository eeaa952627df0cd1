// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q and k, and of v if it is loaded as the caller has it. O is stored from registers.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::fp8 {

struct TensorMaps {
  const TensorMap &q, &k;
};

struct TensorMapsWithValues {
  const TensorMap &q, &k, &v;  // v: keys, heads, columns, sequences
};

}  // namespace fa::sm90::fp8
