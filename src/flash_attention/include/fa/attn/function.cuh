// SPDX-License-Identifier: Apache-2.0
// Operations of the programs that users' mask and score functions become.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::function {

// Quotients rounded down, and what they leave: the remainder has the sign of the divisor.
__device__ __forceinline__ int floor_divide(int a, int b) {
  const int quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}

__device__ __forceinline__ int floor_remainder(int a, int b) {
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

__device__ __forceinline__ float floor_divide(float a, float b) { return floorf(__fdiv_rn(a, b)); }

__device__ __forceinline__ int smaller(int a, int b) { return min(a, b); }
__device__ __forceinline__ int larger(int a, int b) { return max(a, b); }
// NaN if one of two is.
__device__ __forceinline__ float smaller(float a, float b) { return ptx::min_nan(a, b); }
__device__ __forceinline__ float larger(float a, float b) { return -ptx::min_nan(-a, -b); }

__device__ __forceinline__ int absolute(int x) { return abs(x); }
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }

__device__ __forceinline__ float sigmoid(float x) { return ptx::reciprocal(1.f + expf(-x)); }

// The nearest index of a dimension of `size` elements: tiles have rows past the last.
__device__ __forceinline__ int within(int index, int size) { return min(max(index, 0), size - 1); }

// How far an index goes into a tensor, in elements.
__device__ __forceinline__ i64 offset(int index, int size, i64 stride) {
  return static_cast<i64>(within(index, size)) * stride;
}

// Elements of captured tensors.
__device__ __forceinline__ bool read_bool(const unsigned char* p) { return __ldg(p) != 0; }
template <class T>
__device__ __forceinline__ int read_int(const T* p) {
  return static_cast<int>(__ldg(p));
}
__device__ __forceinline__ float read_float(const float* p) { return __ldg(p); }
__device__ __forceinline__ float read_float(const double* p) {
  return static_cast<float>(__ldg(p));
}
__device__ __forceinline__ float read_fp16(const unsigned short* p) {
  return ptx::f16_to_f32(__ldg(p));
}
__device__ __forceinline__ float read_bf16(const unsigned short* p) {
  return __uint_as_float(static_cast<u32>(__ldg(p)) << 16);
}

}  // namespace fa::attn::function
