// SPDX-License-Identifier: Apache-2.0
// Four columns in 16 bits, as two pairs.
#pragma once
#include <fa/ptx/memory.cuh>

namespace fa::merge::values {

struct Pairs {
  template <class DType>
  static __device__ float4 load(const void* tensor, i64 element) {
    const uint2 pairs =
        *reinterpret_cast<const uint2*>(static_cast<const char*>(tensor) + element * kElementBytes);
    return {DType::low(pairs.x), DType::high(pairs.x), DType::low(pairs.y), DType::high(pairs.y)};
  }
  template <class DType>
  static __device__ void store(void* tensor, i64 element, float4 x) {
    ptx::st_global_8(static_cast<char*>(tensor) + element * kElementBytes, DType::pack(x.x, x.y),
                     DType::pack(x.z, x.w));
  }
};

}  // namespace fa::merge::values
