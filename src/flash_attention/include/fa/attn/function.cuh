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

// What `make(column, h)` returns for the columns of `Fragments` fragments of eight, in row h of a lane. If it is
// `Shared`, no row matters and making is slow: each lane makes some, and gets the others from their lanes.
template <bool Shared, int Fragments, class Make>
class Columns {
  using T = decltype((*static_cast<const Make*>(nullptr))(0, 0));

 public:
  __device__ __forceinline__ explicit Columns(const Make& make) : make_(make) {
    if constexpr (Shared)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) own_[i] = make(kWarpSize * i + lane_id(), 0);
  }

  // That of element e of fragment j.
  __device__ __forceinline__ T operator()(int j, int e, int h) const {
    const int column = 8 * j + 2 * (lane_id() % 4) + e;
    if constexpr (Shared) {
      const u32 word = __builtin_bit_cast(u32, own_[8 * j / kWarpSize]);
      return __builtin_bit_cast(T, __shfl_sync(~0u, word, column % kWarpSize));
    } else {
      return make_(column, h);
    }
  }

 private:
  static constexpr int kOwn = Shared ? (8 * Fragments + kWarpSize - 1) / kWarpSize : 1;
  const Make& make_;
  T own_[kOwn];
};

// An element of a pair, the first or the second.
__device__ __forceinline__ float unpack_fp16(u32 pair, int e) {
  return ptx::f16_to_f32(static_cast<unsigned short>(e ? pair >> 16 : pair));
}
__device__ __forceinline__ float unpack_bf16(u32 pair, int e) {
  return __uint_as_float(e ? pair & 0xffff0000u : pair << 16);
}

// Which queries and keys of a tensor [outer, inner, queries, keys] are those of a head.
struct Plane {
  int inner, outer;
};

// An index of its planes. A tensor map has one plane for all that are the same memory.
__device__ __forceinline__ int plane(int index, int size, i64 stride) {
  return stride == 0 ? 0 : within(index, size);
}

// The gradient of a tensor [outer, inner, queries, keys] with contiguous keys.
struct Gradient {
  unsigned short* first;
  int outer, inner, queries, keys;
  i64 outer_stride, inner_stride, row_stride;

  __device__ unsigned short* row(Plane plane, int query) const {
    return first + plane.outer * outer_stride + plane.inner * inner_stride + query * row_stride;
  }
};

template <class... Loads>
struct List {};

// Which scores an element of a gradient has terms of: those of a head, of a query, of a key, of one of each,
// or of any, such as those of a distance.
enum class Shared { kHead, kQuery, kKey, kPair, kElement };

// An element of a gradient, if it has one term.
template <class T>
__device__ __forceinline__ void store_float(T* to, float x) {
  *to = x;
}
__device__ __forceinline__ void store_fp16(unsigned short* to, float x) {
  *to = static_cast<unsigned short>(ptx::pack_f16x2(x, 0.f));
}
__device__ __forceinline__ void store_bf16(unsigned short* to, float x) {
  *to = static_cast<unsigned short>(ptx::pack_bf16x2(x, 0.f));
}

// Adds a term to an element of a gradient.
__device__ __forceinline__ void add(float* to, float x) {
  if (x != 0.f) atomicAdd(to, x);
}

// Adds a term without rounding, so that the order of terms does not matter. The sum is a number of digits
// with a sign and room for carries each. Digit 0 counts in 2^-96, each other one in 2^32 of the one before.
// What is smaller is cut off; what is 2^63 or more is infinite and goes to `to`.
inline constexpr int kDigits = 5;
__device__ __forceinline__ void add(float* to, float x, i64* digits) {
  constexpr int kLowest = 96, kFraction = 23, kBias = 127, kDigitBits = 32;
  if (x == 0.f) return;
  if (!(fabsf(x) < 0x1p63f)) {
    atomicAdd(to, x * __uint_as_float(0x7f800000u));
    return;
  }
  const u32 bits = __float_as_uint(x);
  int shift = static_cast<int>(bits >> kFraction & 0xff) - kBias - kFraction + kLowest;
  u32 fraction = (bits & 0x7fffff) | 0x800000;
  if (shift < 0) fraction >>= min(-shift, 31), shift = 0;
  const i64 wide = static_cast<i64>(fraction) << shift % kDigitBits;
  const i64 low = wide & 0xffffffff, high = wide >> kDigitBits;
  u64* const at = reinterpret_cast<u64*>(digits) + shift / kDigitBits;
  atomicAdd(at, static_cast<u64>(x < 0.f ? -low : low));
  if (high) atomicAdd(at + 1, static_cast<u64>(x < 0.f ? -high : high));
}

}  // namespace fa::attn::function
