// SPDX-License-Identifier: Apache-2.0
// The two products of a warpgroup and its registers. Each warp holds 16 rows of S, P and O.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/dtype.cuh>
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// The type of the operands of both products: that of O. If Q, K and V have 8 bits and are converted as they
// are, Fp16 holds them exactly, and converting to it is one instruction for two elements instead of four.
template <class Config>
struct OperandOf {
  using Type = typename Config::DType;
};
template <class Config>
  requires(Config::kConvertQueries > 0 || kScores8Bit<Config>) && (Config::Descale::kKeepsElements)
struct OperandOf<Config> {
  using Type = dtype::Fp16;
};

// The type of Q and K, and how many columns one product has.
template <class Config, bool Scores8Bit = kScores8Bit<Config>>
struct ScoreOperand {
  using Type = typename OperandOf<Config>::Type;
  static constexpr int kDepth = 16;
};
template <class Config>
struct ScoreOperand<Config, true> {
  using Type = ptx::E4m3;
  static constexpr int kDepth = 32;
};

template <class Config>
struct Products {
  using DType = typename OperandOf<Config>::Type;
  using QTile = typename Shape<Config>::QTile;
  using KTile = typename Shape<Config>::KTile;
  using QOperand = typename QTile::RowOperand;
  using KOperand = typename KTile::RowOperand;
  using VOperand = typename Shape<Config>::VTile::ColumnOperand;
  // Of Q and K. A step that is half beyond d_head reads zeros there, which TMA wrote.
  using ScoreType = typename ScoreOperand<Config>::Type;
  static constexpr int kDimSteps =
      (Config::kDHead + ScoreOperand<Config>::kDepth - 1) / ScoreOperand<Config>::kDepth;

  template <int Keys>
  using Scores = Accumulator<kWarpRows, Keys>;
  template <int Keys>
  struct Weights {  // P as the A operand: pairs of elements, 16 keys in four registers
    u32 step[Keys / 16][4];
    typename Config::Dropout::template Dropped<attn::RowsOf::kQueries, Keys / 16> dropped;
  };
  using Output = Accumulator<kWarpRows, Config::kDHead>;

  // S = Q K^T with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_scores(Scores<Keys>& s, QOperand q, KOperand k) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d)
      ptx::WgmmaFromShared<ScoreType, Keys>::run(s, q.step(d), k.step(d), d != 0);
    ptx::wgmma_commit();
  }

  // O += P V with the first `Keys` keys of the block, asynchronously.
  template <int Keys>
  static __device__ void issue_accumulate(Output& o, const Weights<Keys>& p, VOperand v) {
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n)
      ptx::WgmmaFromRegisters<DType, Config::kDHead>::run(o, p.step[n], v.step(n));
    ptx::wgmma_commit();
  }

  // Waits until all but the latest `Pending` products have read their operands and stored their results.
  template <int Pending>
  static __device__ void wait_products() {
    ptx::wgmma_wait<Pending>();
  }

  template <int Keys>
  static __device__ void convert(Weights<Keys>& p, const Scores<Keys>& s) {
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      pack_operand<DType>(p.step[n], s.v[0], n);
      p.dropped.clear(p.step[n], n);
    }
  }

  // Computes S again, by this warp alone: Q's 16 rows from `q_row` of its tile, all keys of the block.
  static __device__ void scores_again(Scores<Config::kBC>& s, QTile q_tile, int q_row,
                                      KTile k_tile) {
    static_assert(!kScores8Bit<Config>, "ldmatrix and mma read elements of 16 bits");
    s.zero();
#pragma unroll 1
    for (int d = 0; d < kDimSteps; ++d) {
      u32 q[4];
      ptx::ldmatrix_x4(q, q_tile.chunk(q_row + lane_id() % 16, 2 * d + lane_id() / 16));
      // The swizzle repeats every 8 rows: 16 rows on, only the row offset is another.
      const u32 keys = k_tile.chunk(lane_id() % 8 + lane_id() / 16 * 8, 2 * d + lane_id() / 8 % 2);
#pragma unroll
      for (int n = 0; n < Config::kBC / 16; ++n) {
        u32 k[4];
        ptx::ldmatrix_x4(k, keys + n * 2 * KTile::kGroupBytes);
        mma<DType>(s.v[0][2 * n], q, k[0], k[1]);
        mma<DType>(s.v[0][2 * n + 1], q, k[2], k[3]);
      }
    }
    ptx::fence_proxy_async();  // these reads come before the copy engine's next writes
    __syncwarp();              // of all lanes, for one of which the tiles are released
  }
};

template <class T>
concept DescaleSlot = requires(typename T::Factors& factors, const ForwardKernelArgs& args) {
  { T::kPerTile } -> Same<const bool&>;
  factors.read(args, 0, 0);
  factors.scaled(args);
  { factors.of_values() } -> Same<float>;
};

}  // namespace fa::sm90

namespace fa::sm90::descale {

// Descale factors in global memory, and the softmax scale with those of Q and K.
__device__ inline float factor(const float* factors, const DescaleStrides& stride, int batch,
                               int kv_head, int block = 0) {
  return factors[batch * stride.batch + kv_head * stride.head + block * stride.block];
}

// The softmax scale of a head, times its factor of Q, if Q has 8 bits, and times `more`.
__device__ inline float softmax_scale(const ForwardKernelArgs& args, int batch, int kv_head,
                                      float more) {
  float scale = args.softmax_scale * more;
  if (args.q_descale) scale *= factor(args.q_descale, args.q_descale_stride, batch, kv_head);
  return scale == 0.f ? 0x1p-64f : scale;  // hidden scores stay -inf
}

// The caller's arguments with another softmax scale.
__device__ inline CallArgs rescaled(const CallArgs& call, float scale) {
  CallArgs changed = call;
  changed.softmax_scale = scale;
  return changed;
}

// K and V of 16 bits have no descale factors.
struct None {
  static constexpr bool kPerTile = false;

  struct Factors {
    __device__ void read(const ForwardKernelArgs&, int /*batch*/, int /*kv_head*/) {}
    __device__ const CallArgs& scaled(const CallArgs& call) const { return call; }
    __device__ float of_values() const { return 1.f; }
  };
};

// K and V of 8 bits have a descale factor for each head of a sequence, or one for all. Those of Q and K are
// part of the softmax scale, and that of V is a factor of the output.
struct PerHead {
  static constexpr bool kPerTile = true;
  static constexpr bool kKeepsElements = true;

  struct Factors {
    float scale, value;

    __device__ void read(const ForwardKernelArgs& args, int batch, int kv_head) {
      const float key = factor(args.k_descale, args.k_descale_stride, batch, kv_head);
      scale = softmax_scale(args, batch, kv_head, key);
      value = factor(args.v_descale, args.v_descale_stride, batch, kv_head);
    }
    __device__ CallArgs scaled(const CallArgs& call) const { return rescaled(call, scale); }
    __device__ float of_values() const { return value; }
  };

  // The rows of a block of K or V are converted as they are.
  struct Rows {
    Rows() = default;
    __device__ Rows(const float*, const DescaleStrides&, int /*batch*/, int /*kv_head*/,
                    int /*first_key*/, int /*last_key*/) {}

    template <class DType>
    __device__ u32 convert(u32 halves, int /*row*/) const {
      return DType::from_halves(halves);
    }
  };
};

// K and V of 8 bits have a descale factor for every 128 keys of a head of a sequence. They are multiplied by
// it when they are converted, and rounded to 16 bits. The factor of Q is part of the softmax scale.
struct PerBlock {
  static constexpr bool kPerTile = true;
  static constexpr bool kKeepsElements = false;
  static constexpr int kKeys = 128;

  struct Factors {
    float scale;

    __device__ void read(const ForwardKernelArgs& args, int batch, int kv_head) {
      scale = softmax_scale(args, batch, kv_head, 1.f);
    }
    __device__ CallArgs scaled(const CallArgs& call) const { return rescaled(call, scale); }
    __device__ float of_values() const { return 1.f; }
  };

  // The keys from `first_key` to `last_key`, at most 128, have one or two factors.
  class Rows {
   public:
    __device__ Rows(const float* factors, const DescaleStrides& stride, int batch, int kv_head,
                    int first_key, int last_key)
        : first_(factor(factors, stride, batch, kv_head, first_key / kKeys)),
          second_(factor(factors, stride, batch, kv_head, last_key / kKeys)),
          rows_of_first_(kKeys - first_key % kKeys) {}

    template <class DType>
    __device__ u32 convert(u32 halves, int row) const {
      const float by = row < rows_of_first_ ? first_ : second_;
      return DType::pack(ptx::f16_to_f32(halves & 0xffff) * by, ptx::f16_to_f32(halves >> 16) * by);
    }

   private:
    const float first_, second_;
    const int rows_of_first_;
  };
};

}  // namespace fa::sm90::descale
