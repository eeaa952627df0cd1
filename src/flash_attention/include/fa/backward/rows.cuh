// SPDX-License-Identifier: Apache-2.0
// The CTAs of the kernels before and after the main one: each has kRows rows of queries of one head, and
// its threads share the rows in chunks of eight columns. The last sequences and heads come first: the
// main kernel, which goes from the first to the last, finds in L2 what was stored before it at last, and
// leaves there what is read after it at first.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// The blocks of statistics of all sequences of a head, as the host counts them. It knows no more of packed
// sequences than the sum of their lengths, `total`, which is negative if they are not packed.
__device__ inline int stat_blocks(int sequences, int longest, int total) {
  const int blocks = sequences * (attn::in_stat_blocks(max(1, longest)) / attn::kStatBlock);
  if (total < 0) return blocks;
  return max(1, min(blocks, (total + sequences * (attn::kStatBlock - 1)) / attn::kStatBlock));
}

// The sequence of a block, found by all lanes of a warp together: 32 sequences at a time.
__device__ inline int sequence_of_warp(const attn::PackedBlocks<attn::kStatBlock>& all, int block) {
  int found = 0;
  for (int next = 0; next < all.sequences; next += kWarpSize) {
    const int mine = next + lane_id();
    const u32 starts = __ballot_sync(~0u, mine < all.sequences && all.first(mine) <= block);
    if (starts) found = next + 31 - __clz(starts);
    if (~starts) break;
  }
  return found;
}

// Which rows a CTA has. The grid is one-dimensional, since its other dimensions have at most 65,535: the
// blocks of a head follow each other, then heads, then sequences. The blocks of all packed sequences follow
// each other, so that short ones have few.
template <class Config>
struct RowBlock {
  int first, head, batch;
  // Rows that belong to no sequence are cleared by CTAs of a head together, of which this is one: those before
  // and after all sequences, and unused keys of this one.
  int rank, ranks;
  bool clears_before, clears_after;
  static constexpr int kClearers = 8;  // at most, of packed sequences

  static constexpr int kParts = attn::kStatBlock / Config::kRows;

  static __device__ bool is_packed(const BackwardKernelArgs& args) {
    return Config::Lengths::kPerBatch && args.cu_seqlens_q && !args.seqused_k;
  }
  // The CTAs of all heads.
  static __device__ int count(const BackwardKernelArgs& args) {
    const int total = is_packed(args) ? args.total_q : -1;
    return stat_blocks(args.batch, args.seq_len_q, total) * kParts * args.heads;
  }

  __device__ RowBlock(const BackwardKernelArgs& args, int cta) {
    if (is_packed(args)) {
      const attn::PackedBlocks<attn::kStatBlock> all{args.cu_seqlens_q, args.seq_len_q, args.batch};
      const int blocks = count(args) / args.heads;
      const int block = blocks - 1 - cta % blocks;
      head = args.heads - 1 - cta / blocks;
      batch = sequence_of_warp(all, block / kParts);
      first = (block - all.first(batch) * kParts) * Config::kRows;
      rank = block;
      ranks = min(blocks, kClearers);
      clears_before = clears_after = rank < ranks;
    } else {
      ranks = attn::in_stat_blocks(max(1, args.seq_len_q)) / Config::kRows;
      rank = cta % ranks;
      const int heads = cta / ranks;  // before this one, of all sequences
      head = args.heads - 1 - heads % args.heads;
      batch = args.batch - 1 - heads / args.heads;
      first = rank * Config::kRows;
      clears_before = batch == 0;
      clears_after = batch == args.batch - 1;
    }
  }
};

template <class Config>
struct Rows {
  const BackwardKernelArgs& args;
  const attn::Sequence sequence;
  const int head, first;  // of the sequence
  const i64 stat_row;     // of lse_log2, delta and dq_sum, for the first of the rows

  __device__ Rows(const BackwardKernelArgs& args, const RowBlock<Config>& cta)
      : args(args),
        sequence(Config::Lengths::sequence(args, cta.batch)),
        head(cta.head),
        first(cta.first),
        stat_row(static_cast<i64>(head) * args.stat_rows + attn::first_stat_row(args, cta.batch) +
                 first) {}

  // Not even the rows that fill the sequence's last block of statistics.
  __device__ bool empty() const { return first >= attn::in_stat_blocks(sequence.q_len); }
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

// Sums are stored in fragments of 16 rows and 8 columns, as accumulators have them. A warp reads four
// fragments of the same rows at a time, and a thread of it stores eight columns of rows `row` and `row` + 8.
template <class Config>
struct Octets {
  static constexpr int kFragments = Config::kSumColumns / 8;  // of a row
  static constexpr int kGroups = kFragments / 4;
  static constexpr int kUnits = attn::kStatBlock / 2 * kFragments;
  static_assert(kFragments % 4 == 0);

  int row, column;
  float x[4][4];

  // The first of the rows that a warp reads.
  static __device__ int first_row(int unit) { return unit / kWarpSize / kGroups * 16; }
  // The unit is that of the warp's first thread, plus the lane.
  __device__ void read(int unit, const float* sums) {
    const int tile = first_row(unit) / 16, first = unit / kWarpSize % kGroups * 4;
    row = first_row(unit) + lane_id() / 4;
    column = first + lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 found = *reinterpret_cast<const float4*>(
          sums + Config::SumOrder::template place<kFragments>(tile, first, i));
      x[i][0] = found.x;
      x[i][1] = found.y;
      x[i][2] = found.z;
      x[i][3] = found.w;
    }
  }

  __device__ void add(const Octets& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] += other.x[i][e];
  }

  // Those of the tensor's columns and of the sequence's rows, times `scale` in 16 bits. All lanes call it.
  template <class Rows>
  __device__ void store(const Rows& rows, void* tensor, const Strides& stride, int columns,
                        float scale) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto chunk = Config::SumOrder::template chunk<typename Config::DType>(x, h, scale);
      if (column * 8 < columns && rows.has(row + 8 * h))
        ptx::st_global_16(
            static_cast<char*>(tensor) + rows.offset(stride, row + 8 * h) + column * kChunkBytes,
            chunk);
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

  // Where a lane's four floats with number i are, of four fragments from `column` on: those that the lanes of
  // a row hold as value i of the lane's fragment.
  template <int RowFragments>
  static __device__ int place(int tile, int column, int i) {
    return fragment<RowFragments>(tile, column + lane_id() % 4) * 128 +
           offset(lane_id() / 4 * 4, i);
  }
  // Eight columns of the first or the second of the lane's rows.
  template <class DType>
  static __device__ ptx::Chunk chunk(const float (&x)[4][4], int half, float scale) {
    const float (&even)[4] = x[2 * half], (&odd)[4] = x[2 * half + 1];
    const auto pair = [&](int n) { return DType::pack(even[n] * scale, odd[n] * scale); };
    return {pair(0), pair(1), pair(2), pair(3)};
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

  // The lane's own four values of fragment i, so that a warp reads whole fragments.
  template <int RowFragments>
  static __device__ int place(int tile, int column, int i) {
    return fragment<RowFragments>(tile, column + i) * 128 + 4 * lane_id();
  }
  // The four lanes of a row have two columns of each fragment, and exchange them: lane n gets fragment n.
  template <class DType>
  static __device__ ptx::Chunk chunk(const float (&x)[4][4], int half, float scale) {
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = DType::pack(x[i][2 * half] * scale, x[i][2 * half + 1] * scale);
    exchange(w[0], w[1], 1);
    exchange(w[2], w[3], 1);
    exchange(w[0], w[2], 2);
    exchange(w[1], w[3], 2);
    return {w[0], w[1], w[2], w[3]};
  }

 private:
  // Lanes with this bit give their first word for the second one of the lanes without it.
  static __device__ void exchange(u32& first, u32& second, int bit) {
    const bool is_second = lane_id() & bit;
    const u32 other = __shfl_xor_sync(~0u, is_second ? first : second, bit);
    (is_second ? first : second) = other;
  }
};

}  // namespace fa::backward::sum_order
