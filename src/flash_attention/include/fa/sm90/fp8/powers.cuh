// SPDX-License-Identifier: Apache-2.0
// The slot Powers: how scores become weights of 8 bits. The slot Sums: who adds these up.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm90::fp8 {

template <class T>
concept SumsSlot = requires(Accumulator<16, 16>& o, attn::RowStats<16>& stats, float x, char* to) {
  { T::kRows } -> Same<const int&>;
  T::store_rows(to);
  T::template write_rows<128>(0u);
  T::add(x, x, x, x, x);
  T::take(o, stats, x);
};

template <class T, class Sums>
concept PowersSlot = requires(const float (&s)[4], float x, typename T::Overflow& overflow) {
  { T::kBias } -> Same<const float&>;
  { T::template weights<Sums>(0, s, x, x, x, overflow) } -> Same<u32>;
  { overflow.large() } -> Same<bool>;
};

}  // namespace fa::sm90::fp8

namespace fa::sm90::fp8::powers {

// Every weight is one MUFU, and its conversion to e4m3 half an instruction.
struct Exact {
  static constexpr float kBias = 0.f;  // weights are 2^kBias too large, on average

  struct Overflow {
    u32 bytes = 0;

    // Whether a weight was 2^8 or more, whose code is 0x78, or NaN, whose code is 0x7f.
    __device__ bool large() const { return (bytes & 0x80808080) != 0; }
  };

  // Four weights 2^(factor s - offset), and their sum.
  template <class Sums>
  static __device__ u32 weights(int /*group of 16 keys*/, const float (&s)[4], float offset,
                                float factor, float& sum, Overflow& overflow) {
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = attn::exponential::FusedExp2::exp(s[i], offset, factor);
    Sums::add(sum, w[0], w[1], w[2], w[3]);
    const u32 packed = ptx::E4m3::pack(w[0], w[1], w[2], w[3]);
    overflow.bytes |= packed + 0x08080808;  // from 0x78 on a byte gets its top bit
    return packed;
  }
};

// Of every four groups of 16 keys, `Groups` have weights without a MUFU. The code of an e4m3 number is
// eight times its logarithm, plus 56, up to 0.7 of a step: rounded to a whole number, 8 log2 P + 56 is the
// code of a piecewise linear 2^x. Half precision rounds numbers from 1024 on to whole ones, so that
// the code is then the lower byte.
template <int Groups>
struct Linear {
  // A line lies above 2^x between whole numbers. The other weights are made as much too large.
  static constexpr float kBias = 0.0573f;

  struct Overflow {
    Exact::Overflow exact;
    u32 top = 0;  // the largest codes plus 1024, a pair

    __device__ bool large() const {
      const u32 swapped = __byte_perm(top, top, 0x1032);
      return exact.large() || (ptx::max_f16x2(top, swapped) & 0xffff) >= kHalf1024 + 0x78;
    }
  };

  template <class Sums>
  static __device__ u32 weights(int group, const float (&s)[4], float offset, float factor,
                                float& sum, Overflow& overflow) {
    if (group % 4 < 4 - Groups)
      return Exact::weights<Sums>(group, s, offset - kBias, factor, sum, overflow.exact);
    const float by = 8.f * factor, from = fmaf(-8.f, offset, 1024.f + 56.f);
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 codes = ptx::pack_f16x2(fmaf(s[2 * i], by, from), fmaf(s[2 * i + 1], by, from));
      overflow.top = ptx::max_f16x2(overflow.top, codes);
      pairs[i] = ptx::max_f16x2(codes, kHalf1024 << 16 | kHalf1024);  // below code 0 it is 0
    }
    return __byte_perm(pairs[0], pairs[1], 0x6420);
  }

 private:
  static constexpr u32 kHalf1024 = 0x6400;
};

}  // namespace fa::sm90::fp8::powers

namespace fa::sm90::fp8::sums {

// The sums of P are added in fp32, before P is rounded.
struct Registers {
  static constexpr int kRows = 0;  // of the transpose of V

  static __device__ void store_rows(char*) {}
  template <int RowBytes>
  static __device__ void write_rows(u32) {}
  static __device__ void add(float& sum, float x, float y, float z, float w) {
    sum += (x + y) + (z + w);
  }
  template <int Columns>
  static __device__ void take(Accumulator<16, Columns>&, attn::RowStats<16>&, float /*zero*/) {}
};

// The tensor cores sum P, as it was rounded: the transpose of V has eight more rows, the first of them
// ones. Their accumulators lose bits as they grow, so the sums of every block are taken out of them.
struct TensorCores {
  static constexpr int kRows = 8;  // of the transpose of V

  // The words of a warp: 16 keys of eight rows.
  static __device__ void store_rows(char* lane) {
    ptx::st_global_4(lane, lane_id() < 4 ? kOnes : 0);
  }
  // Eight rows in shared memory. A swizzle moves the chunks of a row, which are equal.
  template <int RowBytes>
  static __device__ void write_rows(u32 smem) {
    constexpr int kRowChunks = RowBytes / kChunkBytes;
    const u32 x = threadIdx.x < kRowChunks ? kOnes : 0;
    if (threadIdx.x < kRows * kRowChunks)
      ptx::st_shared_16(smem + threadIdx.x * kChunkBytes, {x, x, x, x});
    ptx::fence_proxy_async();  // products see the rows
  }
  static __device__ void add(float&, float, float, float, float) {}

  // The first lane of a quad has the sum, the others zeros. A constant zero would make ptxas wait for
  // every product before the next, `zero` does not.
  template <int Columns>
  static __device__ void take(Accumulator<16, Columns>& o, attn::RowStats<16>& stats, float zero) {
    float (&sums)[4] = o.v[0][Columns / 8 - 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      stats.sum[0][h] += sums[2 * h];
      sums[2 * h] *= zero;
    }
  }

 private:
  static constexpr u32 kOnes = 0x38383838;
};

}  // namespace fa::sm90::fp8::sums
