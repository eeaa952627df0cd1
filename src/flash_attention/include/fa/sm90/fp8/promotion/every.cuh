// SPDX-License-Identifier: Apache-2.0
// The accumulators of 8-bit products keep some 14 bits and cut off the rest of every product, so sums of
// many numbers of one sign drift. After every `Blocks` key blocks O is added to a copy in fp32, in the
// shared memory of its own thread, and starts again from zero.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm90::fp8::promotion {

template <int Blocks>
struct Every {
  template <int Columns>
  static constexpr int kThreadBytes = Columns / 2 * 4;

  // Of the first `Columns` columns of O. `smem` is the address of this thread among those of a
  // warpgroup: 16 bytes for each, 8 columns after the other.
  template <int Columns>
  class Copy {
   public:
    __device__ explicit Copy(u32 smem) : smem_(smem) {}

    __device__ void begin() {
      blocks_ = 0;
      held_ = false;
      shrink_[0] = shrink_[1] = 1.f;
    }

    // After every block but the last. O is complete.
    template <int All>
    __device__ void count(Accumulator<16, All>& o, const attn::RowStats<16>& stats, float zero) {
      if (stats.grew) {
        shrink_[0] *= stats.shrink[0][0];
        shrink_[1] *= stats.shrink[0][1];
      }
      if (!__any_sync(~0u, ++blocks_ == Blocks)) return;
      end(o);
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j) {
        ptx::st_shared_floats(place(j), o.v[0][j]);
#pragma unroll
        for (float& x : o.v[0][j]) x *= zero;  // a constant would make ptxas wait for every product
      }
      blocks_ = 0;
      held_ = true;
      shrink_[0] = shrink_[1] = 1.f;
    }

    // Adds the copy to O.
    template <int All>
    __device__ void end(Accumulator<16, All>& o) const {
      if (!__any_sync(~0u, held_)) return;
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j) {
        const ptx::Chunk copy = ptx::ld_shared_16(place(j));
        float (&x)[4] = o.v[0][j];
        x[0] = fmaf(__uint_as_float(copy.x), shrink_[0], x[0]);
        x[1] = fmaf(__uint_as_float(copy.y), shrink_[0], x[1]);
        x[2] = fmaf(__uint_as_float(copy.z), shrink_[1], x[2]);
        x[3] = fmaf(__uint_as_float(copy.w), shrink_[1], x[3]);
      }
    }

   private:
    static constexpr int kWarpgroupThreads = 128;
    __device__ u32 place(int j) const { return smem_ + j * kWarpgroupThreads * kChunkBytes; }

    const u32 smem_;
    int blocks_;
    bool held_;
    float shrink_[2];  // of the copy, since it was stored
  };
};

}  // namespace fa::sm90::fp8::promotion
