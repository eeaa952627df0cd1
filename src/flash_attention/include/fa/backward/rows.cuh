// SPDX-License-Identifier: Apache-2.0
// The CTAs of the kernels before and after the main one: each has 128 rows of queries of one head, and
// its threads share the rows in chunks of eight columns. The last sequences and heads come first: the
// main kernel, which goes from the first to the last, finds in L2 what was stored before it at last, and
// leaves there what is read after it at first.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// Which rows a CTA has. The grid is one-dimensional, since its other dimensions have at most 65,535: the
// blocks of a head follow each other, then heads, then sequences.
struct RowBlock {
  int block, blocks, head, batch;  // `blocks` of a head

  __device__ explicit RowBlock(const BackwardKernelArgs& args)
      : blocks(max(1, attn::in_stat_blocks(args.seq_len_q) / attn::kStatBlock)) {
    const int heads = blockIdx.x / blocks;  // before this one, of all sequences
    block = blockIdx.x % blocks;
    head = heads % args.heads;
    batch = heads / args.heads;
  }
};

template <class Config>
struct Rows {
  const BackwardKernelArgs& args;
  const attn::Sequence sequence;
  const int head, first;  // of the sequence
  const i64 stat_row;     // of lse_log2, delta and dq_sum, for the first of the rows

  __device__ explicit Rows(const BackwardKernelArgs& args) : Rows(args, RowBlock(args)) {}
  __device__ Rows(const BackwardKernelArgs& args, const RowBlock& cta)
      : args(args),
        sequence(Config::Lengths::sequence(args, args.batch - 1 - cta.batch)),
        head(args.heads - 1 - cta.head),
        first(cta.block * attn::kStatBlock),
        stat_row(static_cast<i64>(head) * args.stat_rows +
                 attn::first_stat_row(args, args.batch - 1 - cta.batch) + first) {}

  __device__ bool empty() const { return first >= sequence.q_len; }
  __device__ bool has(int row) const { return first + row < sequence.q_len; }

  // A row of a tensor of queries, in bytes.
  __device__ i64 offset(const Strides& stride, int row) const {
    return (sequence.q_batch * stride.batch + head * stride.head +
            (sequence.q_first + first + row) * stride.seq) *
           kElementBytes;
  }
  // A row of lse and dlse.
  __device__ i64 lse_offset(int row) const {
    return sequence.q_batch * args.lse_batch_stride + head * args.lse_head_stride +
           sequence.q_first + first + row;
  }
};

// Sums are stored in fragments of 16 rows and 8 columns, as accumulators have them. A thread takes two rows of
// a fragment: eight columns of rows `row` and `row` + 8.
template <class Config>
struct Octets {
  static constexpr int kFragments = Config::kSumColumns / 8;  // of a row
  static constexpr int kUnits = attn::kStatBlock / 2 * kFragments;

  int row, column;
  float x[2][8];

  static __device__ int row_of(int unit) {
    return unit / kFragments / 8 * 16 + unit / kFragments % 8;
  }
  __device__ void read(int unit, const float* sums) {
    row = row_of(unit);
    column = unit % kFragments;
    const int octet = row % 16, tile = row / 16;
    Config::SumOrder::read(
        x, sums + Config::SumOrder::template fragment<kFragments>(tile, column) * 128, octet);
  }

  __device__ void add(const Octets& other) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 8; ++c) x[h][c] += other.x[h][c];
  }

  // Those of the tensor's columns and of the sequence's rows, times `scale` in 16 bits.
  template <class Rows>
  __device__ void store(const Rows& rows, void* tensor, const Strides& stride, int columns,
                        float scale) const {
    if (column * 8 >= columns) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!rows.has(row + 8 * h)) continue;
      const auto pair = [&](int c) {
        return Config::DType::pack(x[h][c] * scale, x[h][c + 1] * scale);
      };
      ptx::st_global_16(
          static_cast<char*>(tensor) + rows.offset(stride, row + 8 * h) + column * kChunkBytes,
          {pair(0), pair(2), pair(4), pair(6)});
    }
  }
};

}  // namespace fa::backward

namespace fa::backward::sum_order {

// The 32 lanes' first values of a fragment follow each other, then their second ones, and so on: an
// addition of one float a lane covers 128 contiguous bytes. Fragments of a row follow each other.
struct ByValue {
  // The place of the fragment of rows 16 tile and columns 8 column.
  template <int RowFragments>
  static __device__ int fragment(int tile, int column) {
    return tile * RowFragments + column;
  }
  // The place of a value that an accumulator's lane holds.
  static __device__ int offset(int lane, int value) { return value * kWarpSize + lane; }

  // Rows `octet` and `octet` + 8 of a fragment.
  static __device__ void read(float (&x)[2][8], const float* fragment, int octet) {
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      const float4 lanes = reinterpret_cast<const float4*>(fragment)[value * 8 + octet];
      float* const to = x[value / 2] + value % 2;
      to[0] = lanes.x;
      to[2] = lanes.y;
      to[4] = lanes.z;
      to[6] = lanes.w;
    }
  }
};

// A lane's four values of a fragment follow each other, then those of the next lane: 16 bytes a lane.
// The fragments of 64 rows follow each other column by column, as a warpgroup holds them.
struct ByLane {
  // The place of the fragment of rows 16 tile and columns 8 column.
  template <int RowFragments>
  static __device__ int fragment(int tile, int column) {
    return tile / 4 * 4 * RowFragments + column * 4 + tile % 4;
  }

  // Rows `octet` and `octet` + 8 of a fragment.
  static __device__ void read(float (&x)[2][8], const float* fragment, int octet) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const float4 values = reinterpret_cast<const float4*>(fragment)[4 * octet + lane];
      x[0][2 * lane] = values.x;
      x[0][2 * lane + 1] = values.y;
      x[1][2 * lane] = values.z;
      x[1][2 * lane + 1] = values.w;
    }
  }
};

}  // namespace fa::backward::sum_order
