// SPDX-License-Identifier: Apache-2.0
// After the main kernel, where the heads of q that share a head of k are split: dK and dV are the sums over
// the splits, always in the same order, or what all splits have added to one sum.
#pragma once
#include <fa/backward/convert.cuh>
#include <fa/backward/rows.cuh>
#include <fa/ptx/async.cuh>

namespace fa::backward {

// 128 keys of a head of k and v. The last sequences and heads come first, as those of queries do.
template <class Config>
struct KeyRows {
  const BackwardKernelArgs& args;
  attn::Sequence sequence;
  int head, first;  // of the sequence
  i64 sum_row;      // of the first sum, for the first of the rows

  __device__ KeyRows(const BackwardKernelArgs& args, int cta) : args(args) {
    const int kv_heads = args.heads / args.heads_per_kv;
    int batch;
    if (Config::Lengths::kPerBatch && args.cu_seqlens_k) {
      const attn::PackedBlocks<attn::kStatBlock> all{args.cu_seqlens_k, args.seq_len_k, args.batch};
      const int ranks = stat_blocks(args.batch, args.seq_len_k, args.total_k);
      const int rank = ranks - 1 - cta % ranks;
      head = kv_heads - 1 - cta / ranks;
      batch = sequence_of_warp(all, rank);
      first = (rank - all.first(batch)) * attn::kStatBlock;
    } else {
      const int blocks = attn::in_stat_blocks(args.seq_len_k) / attn::kStatBlock;
      const int heads = cta / blocks;  // before this one, of all sequences
      head = kv_heads - 1 - heads % kv_heads;
      batch = args.batch - 1 - heads / kv_heads;
      first = cta % blocks * attn::kStatBlock;
    }
    sequence = Config::Lengths::sequence(args, batch);
    sum_row = static_cast<i64>(head) * args.key_rows + attn::first_key_row(args, batch) + first;
  }

  __device__ bool empty() const { return first >= sequence.k_len; }
  __device__ bool has(int row) const { return first + row < sequence.k_len; }
  __device__ i64 offset(const Strides& stride, int row) const {
    return (sequence.k_batch * stride.batch + head * stride.head +
            (sequence.k_first + first + row) * stride.seq) *
           kElementBytes;
  }
};

// A block of keys has CTAs for the parts of its dK, then for those of its dV. A thread has one unit, so that few
// keys have many threads that read their splits.
template <class Config>
__device__ void add_part(const BackwardKernelArgs& args, int cta) {
  using Unit = Octets<Config>;
  constexpr int kParts = Unit::kUnits / Config::kThreads;
  static_assert(Unit::kUnits % Config::kThreads == 0);
  const KeyRows<Config> rows(args, cta / (2 * kParts));
  const int part = cta % (2 * kParts), i = part % kParts * Config::kThreads + threadIdx.x;
  if (Config::kStartsEarly) ptx::wait_for_grid();             // the sums are complete
  if (rows.empty() || !rows.has(Unit::first_row(i))) return;  // nothing was stored
  const bool values = part >= kParts;
  const float* const sums =
      (values ? args.dv_sum : args.dk_sum) + rows.sum_row * Config::kSumColumns;
  const i64 split = static_cast<i64>(args.heads / args.heads_per_kv) * args.key_rows *
                    Config::kSumColumns;  // floats of one sum
  Unit unit;
  unit.read(i, sums);
#pragma unroll 4
  for (int s = 1; s < args.key_sums; ++s) {
    Unit other;
    other.read(i, sums + s * split);
    unit.add(other);
  }
  if (values)
    unit.store(rows, args.dv, args.dv_stride, args.d_v, args.dropout_scale);
  else
    unit.store(rows, args.dk, args.dk_stride, args.d_qk, args.softmax_scale);
}

template <class Config>
__device__ void add_splits(const BackwardKernelArgs& args) {
  add_part<Config>(args, blockIdx.x);
}

// Both kernels in one, where dQ is added as well.
template <class Config>
__device__ void convert_and_add_splits(const BackwardKernelArgs& args) {
  const int rows = RowBlock<Config>::count(args);
  if (static_cast<int>(blockIdx.x) < rows)
    convert_rows<Config>(args, blockIdx.x);
  else
    add_part<Config>(args, blockIdx.x - rows);
}

}  // namespace fa::backward
