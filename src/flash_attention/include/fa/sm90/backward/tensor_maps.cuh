// SPDX-License-Identifier: Apache-2.0
// The tensor maps of the inputs, and of the gradients that leave by TMA.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90::backward {

struct TensorMaps {
  const TensorMap &q, &k, &v, &d_o;
  const TensorMap* dq = nullptr;  // if the kernel stores dQ
  const TensorMap &dk, &dv;
};

}  // namespace fa::sm90::backward
