// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q and k. V is part of K, and O is stored from registers.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::mla {

struct TensorMaps {
  const TensorMap &q, &k;
};

}  // namespace fa::sm90::mla
