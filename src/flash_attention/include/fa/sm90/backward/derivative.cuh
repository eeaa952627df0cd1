// SPDX-License-Identifier: Apache-2.0
// The slot Derivative: how dS is made of P and dP. The slot Slopes: the derivative of the scores themselves. The
// slot Dropping: what dropout does to P and dP.
#pragma once
#include <fa/core.cuh>
#include <fa/sm90/backward/products.cuh>

namespace fa::sm90::backward {

struct StatsOfNobody {
  __device__ ptx::FloatPair operator()(int) const { return {}; }
};

template <class T, class Math>
concept DerivativeSlot = requires(typename T::template Kept<Math>& kept,
                                  typename Math::Scores& scores, typename Math::Pairs& pairs) {
  kept.keep(scores);
  kept.keep(pairs);
  T::template run<Math>(scores, kept, 1.f, StatsOfNobody{});
  T::template convert<Math>(pairs, scores);
};

struct SlopesOfNobody {
  __device__ float operator()(int, int) const { return 1.f; }
};

template <class T, class Math>
concept SlopesSlot =
    requires(typename T::template Kept<Math>& kept, typename Math::Scores& scores) {
      kept.keep_slopes(SlopesOfNobody{});
      kept.multiply_slopes(scores);
    };

template <class T, class Config>
concept DroppingSlot =
    requires(typename T::template Of<Config>& of, const BackwardKernelArgs& args, Mailbox mail,
             const typename Products<Config>::Pairs& p, typename Products<Config>::Scores& dp) {
      { typename T::template Of<Config>(args) };
      of.begin_tile(mail);
      of.next_head();
      of.draw(0, 0);
      of.drop(p);
      of.weights(p);
      of.drop_gradients(dp);
    };

// dS = P (dP - delta) with a P that is kept while the product dV reads its operand: nothing may touch the
// registers of an operand before the product is complete.
template <template <class> class KeptP>
struct WithKeptP {
  template <class Math>
  using Kept = KeptP<Math>;

  // dP times `scale` becomes dS; `deltas(j)` are those of a lane's two queries of fragment j.
  template <class Math, class Deltas>
  static __device__ void run(typename Math::Scores& dp, const Kept<Math>& kept, float scale,
                             Deltas deltas) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j) {
      const ptx::FloatPair delta = deltas(j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp.v[0][j][e] = kept.p(j, e) * (dp.v[0][j][e] * scale - (e % 2 ? delta.y : delta.x));
    }
  }

  template <class Math>
  static __device__ void convert(typename Math::Pairs& p, const typename Math::Scores& ds) {
    Math::convert(p, ds);
  }
};

template <class Math>
struct ExactP {
  typename Math::Scores s;

  __device__ void keep(const typename Math::Scores& p) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s.v[0][j][e] = ptx::min_nan(p.v[0][j][e], 1.f);
  }
  __device__ void keep(const typename Math::Pairs&) {}
  __device__ float p(int j, int e) const { return s.v[0][j][e]; }
};

// The copy is one in PTX only: ptxas gives it the registers of the operand, which nobody overwrites.
template <class Math>
struct RoundedP {
  typename Math::Pairs pairs;

  __device__ void keep(const typename Math::Scores&) {}
  __device__ void keep(const typename Math::Pairs& p) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        pairs.step[j / 2][j % 2 * 2 + h] = ptx::copy(p.step[j / 2][j % 2 * 2 + h]);
  }
  __device__ float p(int j, int e) const {
    const u32 pair = pairs.step[j / 2][j % 2 * 2 + e / 2];
    return e % 2 ? Math::DType::high(pair) : Math::DType::low(pair);
  }
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::derivative {

// dS = P (dP - delta) with P in fp32, which needs registers of its own.
struct Exact : WithKeptP<ExactP> {};

// dS = P (dP - delta) with the 16-bit P that the product dV reads.
struct Rounded : WithKeptP<RoundedP> {};

// dS = P (dP - delta) as a product of 16-bit pairs: half as many instructions, one more rounding.
struct Pairs {
  template <class Math>
  struct Kept {
    __device__ void keep(const typename Math::Scores&) {}
    __device__ void keep(const typename Math::Pairs&) {}
  };

  // dP times `scale`, minus delta; `deltas(j)` are those of a lane's two queries of fragment j.
  template <class Math, class Kept, class Deltas>
  static __device__ void run(typename Math::Scores& dp, const Kept&, float scale, Deltas deltas) {
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j) {
      const ptx::FloatPair delta = deltas(j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp.v[0][j][e] = dp.v[0][j][e] * scale - (e % 2 ? delta.y : delta.x);
    }
  }

  template <class Math>
  static __device__ void convert(typename Math::Pairs& p, const typename Math::Scores& difference) {
    using DType = typename Math::DType;
#pragma unroll
    for (int j = 0; j < Math::Scores::kColFragments; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float (&x)[4] = difference.v[0][j];
        u32& pair = p.step[j / 2][j % 2 * 2 + h];
        pair = DType::multiply(pair, DType::pack(x[2 * h], x[2 * h + 1]));
      }
  }
};

}  // namespace fa::sm90::backward::derivative

namespace fa::sm90::backward::slopes {

// Scores are only scaled: dS needs no other factor.
struct Ones {
  template <class Math>
  struct Kept {
    template <class Slope>
    __device__ void keep_slopes(Slope) {}
    __device__ void multiply_slopes(typename Math::Scores&) const {}
  };
};

// The derivatives of changed scores by the scaled ones, in 16-bit pairs: they are computed with P, while
// the changed scores are there, and kept until dS needs them.
struct Pairs {
  template <class Math>
  class Kept {
    using DType = typename Math::DType;
    using Scores = typename Math::Scores;

   public:
    template <class Slope>  // slope(j, e)
    __device__ void keep_slopes(Slope slope) {
#pragma unroll
      for (int j = 0; j < Scores::kColFragments; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          pairs_[j][h] = DType::pack(slope(j, 2 * h), slope(j, 2 * h + 1));
    }
    __device__ void multiply_slopes(Scores& ds) const {
#pragma unroll
      for (int j = 0; j < Scores::kColFragments; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          ds.v[0][j][2 * h] *= DType::low(pairs_[j][h]);
          ds.v[0][j][2 * h + 1] *= DType::high(pairs_[j][h]);
        }
    }

   private:
    u32 pairs_[Scores::kColFragments][2];
  };
};

}  // namespace fa::sm90::backward::slopes

namespace fa::sm90::backward::dropping {

// Nothing is dropped.
struct None {
  template <class Config>
  class Of {
    using Pairs = typename Products<Config>::Pairs;

   public:
    __device__ explicit Of(const BackwardKernelArgs&) {}
    __device__ void begin_tile(Mailbox) {}
    __device__ void next_head() {}
    __device__ void draw(int /*key*/, int /*query*/) {}
    __device__ void drop(const Pairs&) {}
    __device__ const Pairs& weights(const Pairs& p) const { return p; }
    __device__ void drop_gradients(typename Products<Config>::Scores&) const {}
  };
};

}  // namespace fa::sm90::backward::dropping
