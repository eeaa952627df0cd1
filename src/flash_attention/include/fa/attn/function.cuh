// SPDX-License-Identifier: Apache-2.0
// Operations of the programs that users' mask and score functions become.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
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

template <class... Loads>
struct List {};

// Which scores an element of a gradient has terms of: those of a head, of a query, of a key, or any.
enum class Shared { kHead, kQuery, kKey, kElement };

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

// What a kernel does whose rows are keys: dS of changed scores is added to the gradients of captured tensors.
// `Own` has each(), which visits the elements of a lane. Terms of an element are added up in a warp first.
template <class Own, class Program, class At>
class Gathering {
  using ProgramArgs = typename Program::Args;

 public:
  // The derivatives by captured elements that depend on scores: scores are gone when dS is there.
  template <class Scores>
  struct Kept {
    Scores of[Program::kKeptLoads > 0 ? Program::kKeptLoads : 1];
  };

  template <class Scores>
  __device__ void keep(Kept<Scores>& kept, const Scores& s, float scale, const ProgramArgs& args,
                       const Place& place) const {
    keep_all(typename Program::Loads{}, kept, s, scale, args, place);
  }

  template <class Scores>
  __device__ void gather(const Scores& ds, const Kept<Scores>& kept, const ProgramArgs& args,
                         const Place& place, const Sequence& sequence) const {
    gather_all(typename Program::Loads{}, ds, kept, args, place, sequence);
  }

 private:
  template <class... Loads, class... Given>
  __device__ void keep_all(List<Loads...>, Given&... given) const {
    (keep_load<Loads>(given...), ...);
  }
  template <class... Loads, class... Given>
  __device__ void gather_all(List<Loads...>, const Given&... given) const {
    (gather_load<Loads>(given...), ...);
  }

  template <class Load, class Scores>
  __device__ void keep_load(Kept<Scores>& kept, const Scores& s, float scale,
                            const ProgramArgs& args, const Place& place) const {
    if constexpr (Load::kKept >= 0)
      own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
        kept.of[Load::kKept].v[0][j][e] = at.template derivative<Load>(s.v[0][j][e] * scale);
      });
  }

  template <class Load, class Scores>
  __device__ void gather_load(const Scores& ds, const Kept<Scores>& kept, const ProgramArgs& args,
                              const Place& place, const Sequence& sequence) const {
    float sums[2] = {};
    typename Load::Element* to[2];
    own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
      const int h = e / 2;
      const float x = term<Load>(ds, kept, j, e, at);
      to[h] = at.template place<Load>();
      if constexpr (Load::kStores) {
        if (at.query - place.ahead < sequence.q_len && at.key < sequence.k_len)
          Load::add(args, to[h], x);
      } else if constexpr (Load::kShared == Shared::kElement) {
        Load::add(args, to[h], x);
      } else if constexpr (Load::kShared == Shared::kQuery) {
        sums[h] = x;
        if (h == 0) return;
        const float sum = column_sum(sums[0] + sums[1]);
        if (lane_id() < 4) Load::add(args, to[h], sum);
      } else {
        sums[h] += x;
      }
    });
    if constexpr (Load::kShared == Shared::kHead) {
      const float sum = lanes_sum<32>(sums[0] + sums[1]);
      if (lane_id() == 0) Load::add(args, to[0], sum);
    } else if constexpr (Load::kShared == Shared::kKey) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(sums[h]);
        if (lane_id() % 4 == 0) Load::add(args, to[h], sum);
      }
    }
  }

  // Where a score is hidden, the derivative may be anything.
  template <class Load, class Scores>
  static __device__ float term(const Scores& ds, const Kept<Scores>& kept, int j, int e,
                               const At& at) {
    const float x = ds.v[0][j][e];
    if constexpr (Load::kKept >= 0)
      return x == 0.f ? x : x * kept.of[Load::kKept].v[0][j][e];
    else
      return x == 0.f ? x : x * at.template derivative<Load>(0.f);
  }

  // The sum of the lanes whose queries are the same.
  static __device__ float column_sum(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
  }

  __device__ const Own& own() const { return static_cast<const Own&>(*this); }
};

}  // namespace fa::attn::function
