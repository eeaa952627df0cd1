// SPDX-License-Identifier: Apache-2.0
// The tensor maps of q, k, v and o; kernels that copy by threads have none.
#pragma once
#include <fa/ptx/tma.cuh>

namespace fa::sm90 {

struct TensorMaps {
  const TensorMap &q, &k, &v, &o;
};

struct NoMaps {};

}  // namespace fa::sm90
