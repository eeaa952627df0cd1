// SPDX-License-Identifier: Apache-2.0
// Four columns in float32.
#pragma once
#include <fa/core.cuh>

namespace fa::merge::values {

struct Floats {
  template <class DType>
  static __device__ float4 load(const void* tensor, i64 element) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + element);
  }
  template <class DType>
  static __device__ void store(void* tensor, i64 element, float4 x) {
    *reinterpret_cast<float4*>(static_cast<float*>(tensor) + element) = x;
  }
};

}  // namespace fa::merge::values
