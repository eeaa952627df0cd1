// SPDX-License-Identifier: Apache-2.0
// The largest score of a head, after the scale and before a softcap. Every warp raises the one in global
// memory, which is -inf before the kernel. A warp knows a score that the head has had, and looks at a block
// only if it may have a larger one, so that a kernel without row maxima needs none.
#pragma once
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn {

// A float in global memory becomes the larger of itself and x, which is neither NaN nor -0. Returns what it was.
// Bits of floats with a sign have the opposite order of integers.
__device__ inline float atomic_max(float* gmem, float x) {
  const int bits = __builtin_bit_cast(int, x);
  return __builtin_bit_cast(
      float,
      x >= 0.f ? atomicMax(reinterpret_cast<int*>(gmem), bits)
               : static_cast<int>(atomicMin(reinterpret_cast<u32*>(gmem), static_cast<u32>(bits))));
}

// What a warp knows of the largest score of a head. Kernels with `Stale` blocks look it up before they see scores,
// which is seldom, and keep a register for something else.
template <int Rows, class Args, bool Stale>
class KnownMax {
  static constexpr float kLn2 = 0.6931471805599453f;
  static constexpr float kLess = 1.f - 0x1p-10f;  // sums and exponentials are rounded by less

 public:
  __device__ explicit KnownMax(const Args& args) : args_(args) {}

  // Rows without a query, of which `used` says no, count for nothing.
  template <class Used>
  __device__ void begin(int head, Used used) {
    head_ = head;
    if (!Stale) look();
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        limit_[i][h] = used(16 * i + lane_id() / 4 + 8 * h) ? 0.f : kInfinity;
  }

  template <int Cols>
  __device__ void see(const Accumulator<Rows, Cols>& s) {
    if (Stale) look();
    float found[Rows / 16][2];
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) found[i][h] = row_max(s, i, h) * args_.softmax_scale;
    raise(found);
  }

  // The limits of the sums of blocks with these offsets, `largest` at most. No weight is larger than their sum.
  __device__ void set_limits(const RowStats<Rows>& block, float largest) {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (is_used(i, h))
          limit_[i][h] =
              fminf(largest, kLess * ptx::exp2(fmaf(known_, kLog2e, -block.offset[i][h])));
  }
  __device__ float limit(int i, int h, float /*largest*/) const { return limit_[i][h]; }

  // P of a block, some of whose sums are over their limit. Says whether all are `largest` at most.
  template <int Cols>
  __device__ bool see_weights(const Accumulator<Rows, Cols>& p, const RowStats<Rows>& block,
                              float largest) {
    bool fits = true, larger = false;
    float found[Rows / 16][2];
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        fits = fits && block.sum[i][h] <= largest;  // not NaN
        found[i][h] = row_max(p, i, h);
        larger = larger || found[i][h] > limit_[i][h];
      }
    if (!__all_sync(~0u, fits)) return false;
    if (!__any_sync(~0u, larger)) return true;
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        found[i][h] = fmaf(block.offset[i][h], kLn2, ptx::log(found[i][h]));
    look();
    raise(found);
    set_limits(block, largest);
    return true;
  }

 private:
  __device__ void look() { known_ = *static_cast<const volatile float*>(args_.max_score + head_); }
  __device__ void raise(const float (&found)[Rows / 16][2]) {
    float most = -kInfinity;
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (is_used(i, h)) most = fmaxf(most, found[i][h]);
    most = most > known_ ? most : -kInfinity;
    if (__all_sync(~0u, most == -kInfinity)) return;
    most = lanes_max<kWarpSize>(most) + 0.f;  // not -0
    float before = most;
    if (lane_id() == 0) before = atomic_max(args_.max_score + head_, most);
    known_ = fmaxf(most, __shfl_sync(~0u, before, 0));
  }
  __device__ bool is_used(int i, int h) const { return limit_[i][h] < kInfinity; }

  const Args& args_;
  int head_;
  float known_;
  float limit_[Rows / 16]
              [2];  // of a row's sums whose weights nobody looks at; inf if it has no query
};

}  // namespace fa::attn

namespace fa::attn::max_score {

// The scores are S times the softmax scale. `Unseen` says that weights are seen instead of them.
struct PerHead {
  template <int Rows, class Args, bool Stale>
  struct Of : KnownMax<Rows, Args, Stale> {
    using KnownMax<Rows, Args, Stale>::KnownMax;

    template <bool Unseen, int Cols, class Change, class Hide>
    __device__ void change(Accumulator<Rows, Cols>& s, Change, Hide hide) {
      hide();
      if (!Unseen) this->see(s);
    }
  };
};

// The score variant changes the scores, which are seen before, and hidden once more afterwards.
struct PerHeadUncapped {
  template <int Rows, class Args, bool /*Stale*/>
  struct Of : KnownMax<Rows, Args, false> {
    using KnownMax<Rows, Args, false>::KnownMax;

    template <bool /*Unseen*/, int Cols, class Change, class Hide>
    __device__ void change(Accumulator<Rows, Cols>& s, Change change, Hide hide) {
      hide();
      this->see(s);
      change();
      hide();
    }
    __device__ void set_limits(const RowStats<Rows>&, float) {}
    __device__ float limit(int, int, float largest) const { return largest; }
    template <int Cols>
    __device__ bool see_weights(const Accumulator<Rows, Cols>&, const RowStats<Rows>&, float) {
      return false;
    }
  };
};

}  // namespace fa::attn::max_score
