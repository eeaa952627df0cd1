// SPDX-License-Identifier: Apache-2.0
// The rotation of a pair of columns by the angle of a position. Products and sums are rounded one by one,
// as torch rounds them.
#pragma once
#include <fa/cache_args.cuh>

namespace fa::cache {

struct Turn {
  float cos, sin;

  __device__ float first(float x, float y) const {
    return __fsub_rn(__fmul_rn(x, cos), __fmul_rn(y, sin));
  }
  __device__ float second(float x, float y) const {
    return __fadd_rn(__fmul_rn(x, sin), __fmul_rn(y, cos));
  }
};

// The turn of the pair with this index.
template <class DType>
__device__ Turn turn_of(const CacheKernelArgs& args, int position, int pair) {
  const auto value = [&](const void* table, i64 stride) {
    return DType::low(static_cast<const unsigned short*>(table)[position * stride + pair]);
  };
  return {value(args.cos, args.cos_stride), value(args.sin, args.sin_stride)};
}

}  // namespace fa::cache
