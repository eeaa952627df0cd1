// SPDX-License-Identifier: Apache-2.0
// The slot Promotion: whether O is added to a copy that keeps more bits than the accumulators.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm90::fp8 {

template <class T>
concept PromotionSlot = requires(typename T::template Copy<16>& copy, Accumulator<16, 16>& o,
                                 const attn::RowStats<16>& stats, u32 smem) {
  { T::template kThreadBytes<16> } -> Same<const int&>;
  { typename T::template Copy<16>(smem) };
  copy.begin();
  copy.rescale(stats);
  copy.count(o);
  copy.end(o);
};

}  // namespace fa::sm90::fp8

namespace fa::sm90::fp8::promotion {

// O stays in the accumulators of the products. Sums of many numbers of one sign drift there: with 8,192
// keys of a mean of one the output is 10 % too small.
struct Never {
  template <int Columns>
  static constexpr int kThreadBytes = 0;

  template <int Columns>
  struct Copy {
    __device__ explicit Copy(u32 /*smem*/) {}
    __device__ void begin() {}
    __device__ void rescale(const attn::RowStats<16>&) {}
    template <int All>
    __device__ void count(Accumulator<16, All>&) {}
    template <int All>
    __device__ void end(Accumulator<16, All>&) {}
  };
};

// The accumulators of 8-bit products keep some 14 bits and cut off the rest of every product, so sums of
// many numbers of one sign drift. After every `Blocks` key blocks O is added to a copy in bf16, in the
// shared memory of its own thread. The accumulators keep what the copy rounds off, so nothing is lost.
template <int Blocks>
struct Every {
  template <int Columns>
  static constexpr int kThreadBytes = Columns;  // half of the columns, two bytes each

  // Of the first `Columns` columns of O. `smem` is the address of this thread among those of a
  // warpgroup: 16 bytes for each, 16 columns after the other.
  template <int Columns>
  class Copy {
   public:
    __device__ explicit Copy(u32 smem) : smem_(smem) {}

    __device__ void begin() {
      blocks_ = 0;
      held_ = false;
      shrink_[0] = shrink_[1] = 1.f;
    }

    // The maxima grew: the copy stands for smaller numbers.
    __device__ void rescale(const attn::RowStats<16>& stats) {
      shrink_[0] *= stats.shrink[0][0];
      shrink_[1] *= stats.shrink[0][1];
    }

    // Before a block is added to O, which is complete.
    template <int All>
    __device__ void count(Accumulator<16, All>& o) {
      if (!__any_sync(~0u, blocks_++ == Blocks)) return;
      end(o);
#pragma unroll
      for (int j = 0; j < Columns / 16; ++j) {
        float (&x)[4] = o.v[0][2 * j], (&y)[4] = o.v[0][2 * j + 1];
        ptx::st_shared_16(place(j),
                          {take(x[0], x[1]), take(x[2], x[3]), take(y[0], y[1]), take(y[2], y[3])});
      }
      blocks_ = 1;
      held_ = true;
      shrink_[0] = shrink_[1] = 1.f;
    }

    // Adds the copy to O.
    template <int All>
    __device__ void end(Accumulator<16, All>& o) const {
      if (!__any_sync(~0u, held_)) return;
#pragma unroll
      for (int j = 0; j < Columns / 16; ++j) {
        const ptx::Chunk copy = ptx::ld_shared_16(place(j));
        float (&x)[4] = o.v[0][2 * j], (&y)[4] = o.v[0][2 * j + 1];
        add(x[0], x[1], copy.x, shrink_[0]);
        add(x[2], x[3], copy.y, shrink_[1]);
        add(y[0], y[1], copy.z, shrink_[0]);
        add(y[2], y[3], copy.w, shrink_[1]);
      }
    }

   private:
    // Both numbers in bf16. They keep what is rounded off.
    static __device__ u32 take(float& x, float& y) {
      const u32 pair = dtype::Bf16::pack(x, y);
      x -= dtype::Bf16::low(pair);
      y -= dtype::Bf16::high(pair);
      return pair;
    }
    static __device__ void add(float& x, float& y, u32 pair, float by) {
      x = fmaf(dtype::Bf16::low(pair), by, x);
      y = fmaf(dtype::Bf16::high(pair), by, y);
    }
    static constexpr int kWarpgroupThreads = 128;
    __device__ u32 place(int j) const { return smem_ + j * kWarpgroupThreads * kChunkBytes; }

    const u32 smem_;
    int blocks_;
    bool held_;
    float shrink_[2];  // of the copy, since it was stored
  };
};

}  // namespace fa::sm90::fp8::promotion
