// SPDX-License-Identifier: Apache-2.0
// Combines the split-KV partial results of a row; their weights are the exponentials of their
// log-sum-exps. A sink is added to the denominator only. A CTA combines one row: its warps share the
// partial results, and a lane of a warp has four columns.
#pragma once
#include <fa/attn/row_stats.cuh>
#include <fa/ptx/grid_dependency.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/part_rows.cuh>
#include <fa/sm90/slots.cuh>

namespace fa::sm90 {

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

template <class Config>
class CombinedRow {
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr int kGroup = Config::Rows::kGroup;
  static constexpr int kColumns = 4 * kWarpSize;  // at a time

 public:
  __device__ CombinedRow(const ForwardKernelArgs& args, int index)
      : args_(args),
        rows_(args),
        position_(index % args.seq_len_q),
        head_(index / args.seq_len_q % args.heads),
        batch_(index / args.seq_len_q / args.heads),
        row_(position_ * kGroup + head_ % kGroup),
        tile_((batch_ * (args.heads / kGroup) + head_ / kGroup) * rows_.q_blocks() +
              row_ / Config::kTileRows),
        first_(Config::Splits::first_split(tile_, args)),
        end_(Config::Splits::end_split(tile_, args)) {}

  __device__ void run() const {
    const float sink = args_.sinks ? args_.sinks[head_] : -attn::kInfinity;
    float max = sink;
    for (int split = first_ + lane_id(); split < end_; split += kWarpSize)
      max = fmaxf(max, lse_of(split));
    max = warp_max(max);
    const float offset = max == -attn::kInfinity ? 0.f : max;
    float sum = 0.f;
    for (int split = first_ + lane_id(); split < end_; split += kWarpSize)
      sum += ptx::exp2((lse_of(split) - offset) * kLog2e);
    sum = warp_sum(sum) + ptx::exp2((sink - offset) * kLog2e);
    for (int column = 0; column < args_.d_v; column += kColumns)
      store(column, offset, sum == 0.f ? 0.f : 1.f / sum);
    if (args_.lse && threadIdx.x == 0)
      args_.lse[batch_ * args_.lse_batch_stride + head_ * args_.lse_head_stride + position_] =
          sum == 0.f ? -attn::kInfinity : max + ptx::log(sum);
  }

 private:
  __device__ i64 part_row(int split) const {
    return rows_.at(Config::Splits::part(tile_, split, args_), row_);
  }
  __device__ float lse_of(int split) const { return args_.lse_parts[part_row(split)]; }

  // The sum of this warp's partial results, for a lane's columns.
  __device__ float4 sum_of_parts(int column, float offset, float inverse) const {
    float4 o = {};
#pragma unroll 8
    for (int split = first_ + warp_id(); split < end_; split += Config::kWarps) {
      const i64 row = part_row(split);
      const float4 part =
          *reinterpret_cast<const float4*>(args_.o_parts + row * args_.d_v + column);
      const float weight = ptx::exp2((args_.lse_parts[row] - offset) * kLog2e) * inverse;
      o.x += weight * part.x;
      o.y += weight * part.y;
      o.z += weight * part.z;
      o.w += weight * part.w;
    }
    return o;
  }

  __device__ void store(int first_column, float offset, float inverse) const {
    __shared__ float4 sums[Config::kWarps][kWarpSize];
    const int column = first_column + 4 * lane_id();
    const bool there = column < args_.d_v;
    if (first_column > 0) __syncthreads();  // the sums of the previous columns were read
    if (there) sums[warp_id()][lane_id()] = sum_of_parts(column, offset, inverse);
    __syncthreads();  // the sums of all warps are stored
    if (warp_id() > 0 || !there) return;
    float4 o = sums[0][lane_id()];
#pragma unroll
    for (int warp = 1; warp < Config::kWarps; ++warp) {
      const float4 more = sums[warp][lane_id()];
      o.x += more.x;
      o.y += more.y;
      o.z += more.z;
      o.w += more.w;
    }
    char* const row =
        static_cast<char*>(args_.o) + (batch_ * args_.o_stride.batch + head_ * args_.o_stride.head +
                                       position_ * args_.o_stride.seq) *
                                          kElementBytes;
    ptx::st_global_8(row + column * kElementBytes, Config::DType::pack(o.x, o.y),
                     Config::DType::pack(o.z, o.w));
  }

  const ForwardKernelArgs& args_;
  const PartRows<typename Config::Rows, Config::kTileRows> rows_;
  const int position_, head_;
  const i64 batch_;
  const int row_, tile_, first_, end_;
};

template <class Config>
__device__ void combine(const ForwardKernelArgs& args) {
  static_assert(attn::DTypeSlot<typename Config::DType>, "DType: kLargestSum, pack(lo, hi)");
  static_assert(RowsSlot<typename Config::Rows>, "Rows: kGroup, position(row), head(tile, row)");
  static_assert(PartsOfSplits<typename Config::Splits>,
                "Splits: part(tile, split, args), first_split(tile, args), end_split");
  const CombinedRow<Config> row(args, blockIdx.x);
  ptx::wait_for_grid();  // the partial results are stored
  row.run();
}

}  // namespace fa::sm90
