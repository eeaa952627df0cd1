// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of a kernel that computes O and its tangent. tangent/args.py mirrors them; every unit
// asserts that.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>

namespace fa {

struct TangentKernelArgs : ForwardKernelArgs {
  const void* q_tangent;
  const void* k_tangent;
  const void* v_tangent;
  void* o_tangent;     // with the strides of o
  float* lse_tangent;  // as lse; null if not requested
};

}  // namespace fa

namespace fa::sm90::tangent {

// The tensor maps of q, k and v, and of their tangents. O and its tangent are stored from registers.
struct TensorMaps {
  const TensorMap &q, &k, &v;
  const TensorMap &q_tangent, &k_tangent, &v_tangent;

  __device__ void prefetch() const {
    for (const TensorMap* map : {&q, &q_tangent, &k, &k_tangent, &v, &v_tangent})
      ptx::tma_prefetch_map(*map);
  }
};

}  // namespace fa::sm90::tangent
