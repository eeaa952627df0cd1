// SPDX-License-Identifier: Apache-2.0
// Arithmetic that every target has: exponential, reciprocal, conversions to packed 16-bit pairs.
// And products on the tensor cores: of a warp, and of a warpgroup.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// 2^x, subnormals flushed: one MUFU.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to one ulp: one MUFU.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ln x to a few ulp: one MUFU for the base-2 logarithm.
__device__ inline float log(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y * 0.6931471805599453f;
}

// Hyperbolic tangent to 2^-11: one MUFU.
__device__ inline float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a / b to two ulp, over the full range of b.
__device__ inline float divide(float a, float b) {
  float y;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// The smaller of two, NaN if one of them is.
__device__ inline float min_nan(float x, float y) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(x), "f"(y));
  return smaller;
}

// The first element of a pair sits in the low half; cvt takes it as its second source.
__device__ inline u32 pack_f16x2(float lo, float hi) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

__device__ inline u32 pack_bf16x2(float lo, float hi) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

__device__ inline float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

__device__ inline u32 multiply_f16x2(u32 x, u32 y) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

// NaN if one of two is.
__device__ inline u32 max_f16x2(u32 x, u32 y) {
  u32 larger;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

__device__ inline u32 min_f16x2(u32 x, u32 y) {
  u32 smaller;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(smaller) : "r"(x), "r"(y));
  return smaller;
}

__device__ inline u32 min_bf16x2(u32 x, u32 y) {
  u32 smaller;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(smaller) : "r"(x), "r"(y));
  return smaller;
}

__device__ inline u32 multiply_bf16x2(u32 x, u32 y) {
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

// x without some of its bits. The compiler does not move it across a fence, as it does with operators of C++.
__device__ inline u32 without_bits(u32 x, u32 bits) {
  u32 rest;
  asm("lop3.b32 %0, %1, %2, 0, 0x30;" : "=r"(rest) : "r"(x), "r"(bits));
  return rest;
}

// Four of the eight bytes of two words, `low` first. Each digit of the selector says which, from the right; 8
// added to it asks for eight copies of the sign.
__device__ inline u32 permute(u32 low, u32 high, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// e4m3: 8 bits, a sign, four of exponent and three of mantissa. The largest number is 448, there is no
// infinity, and the bits below the sign are all set in NaN.
struct E4m3 {
  // The nearest e4m3 numbers, the first in the lowest byte. Numbers beyond the range become 448.
  static __device__ u32 pack(float x, float y, float z, float w) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y), "f"(x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(w), "f"(z));
    u32 packed;
    asm("mov.b32 %0, {%1, %2};" : "=r"(packed) : "h"(low), "h"(high));
    return packed;
  }

  // The numbers in two bytes as a pair of halves, exactly. NaN remains NaN.
  static __device__ u32 to_f16x2(unsigned short bytes) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bytes));
    return pair;
  }
};

// D += A B on the tensor cores: A 16x16 row-major, B 16x8 column-major, D 16x8 in fp32.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Asynchronous products of a warpgroup: 64 rows, N columns, 16 deep, or 32 in e4m3. The instruction names
// all its registers, so each translation unit contains wrappers for the widths that its kernel uses.

// D = A B^T, or D += A B^T: A [64][16] and B [N][16] in shared memory, both contiguous along 16.
template <class DType, int N>
struct WgmmaFromShared;

// start: D = A B, in registers that need no values. run: D += A B. A [64][16] and B [16][N] are in shared
// memory, contiguous along 16, or A along 64 and B along N.
template <class DType, int N, bool AAlongRows, bool BAlongWidth>
struct WgmmaBothShared;

// start: D = A B^T, in registers that need no values. run: D += A B^T. A [64][16] is in registers, B
// [N][16] in shared memory, contiguous along 16.
template <class DType, int N>
struct WgmmaFromRegistersByRows;

// D += A B: A [64][16] in registers, B [16][N] in shared memory, contiguous along N.
template <class DType, int N>
struct WgmmaFromRegisters;

// Orders earlier accesses to operand registers before later products.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `Pending` committed groups are still running.
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// An operand's descriptor. Bits 0-13 address / 16, 16-29 leading distance / 16, 32-45 stride distance
// / 16, 62-63 swizzle (0: none, 1: 128 bytes, 2: 64 bytes).
__device__ inline u64 wgmma_descriptor(u32 smem, int leading_bytes, int stride_bytes,
                                       int swizzle_bytes) {
  return static_cast<u64>((smem & 0x3FFFF) >> 4) | static_cast<u64>(leading_bytes >> 4) << 16 |
         static_cast<u64>(stride_bytes >> 4) << 32 |
         static_cast<u64>(swizzle_bytes == 128 ? 1 : swizzle_bytes / 32) << 62;
}

// A word. The compiler does not move what is computed from it to where it is read, which would wait there.
__device__ inline u32 word_here(u32 x) {
  u32 word;
  asm volatile("mov.b32 %0, %1;" : "=r"(word) : "r"(x));
  return word;
}

}  // namespace fa::ptx
