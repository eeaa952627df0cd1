// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q and k. V is loaded from its transpose, and O is stored from registers.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::fp8 {

struct TensorMaps {
  const TensorMap &q, &k;
};

}  // namespace fa::sm90::fp8
