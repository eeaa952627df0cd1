// SPDX-License-Identifier: Apache-2.0
// After the main kernel, where the heads of q that share a head of k are split: dK and dV are the sums over
// the splits, always in the same order.
#pragma once
#include <fa/backward/rows.cuh>
#include <fa/ptx/async.cuh>

namespace fa::backward {

// 128 keys of a head of k and v. The last sequences and heads come first, as those of queries do.
template <class Config>
struct KeyRows {
  const BackwardKernelArgs& args;
  attn::Sequence sequence;
  int head, first;  // of the sequence
  i64 sum_row;      // of the first split, for the first of the rows

  __device__ explicit KeyRows(const BackwardKernelArgs& args) : args(args) {
    const int blocks = attn::in_stat_blocks(args.seq_len_k) / attn::kStatBlock;
    const int heads = blockIdx.x / blocks;  // before this one, of all sequences
    const int kv_heads = args.heads / args.heads_per_kv;
    const int batch = args.batch - 1 - heads / kv_heads;
    head = kv_heads - 1 - heads % kv_heads;
    first = blockIdx.x % blocks * attn::kStatBlock;
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

// The grid's second dimension is the gradient: dK, then dV.
template <class Config>
__device__ void add_splits(const BackwardKernelArgs& args) {
  using Unit = Octets<Config>;
  if (Config::kStartsEarly) ptx::wait_for_grid();  // the sums are complete
  const KeyRows<Config> rows(args);
  if (rows.empty()) return;
  const bool values = blockIdx.y > 0;
  const float* const sums =
      (values ? args.dv_sum : args.dk_sum) + rows.sum_row * Config::kSumColumns;
  const i64 split = static_cast<i64>(args.heads / args.heads_per_kv) * args.key_rows *
                    Config::kSumColumns;  // floats of one
#pragma unroll 1
  for (int i = threadIdx.x; i < Unit::kUnits; i += Config::kThreads) {
    if (!rows.has(Unit::row_of(i))) continue;  // nothing was stored
    Unit unit;
    unit.read(i, sums);
#pragma unroll 2
    for (int s = 1; s < args.head_splits; ++s) {
      Unit other;
      other.read(i, sums + s * split);
      unit.add(other);
    }
    if (values)
      unit.store(rows, args.dv, args.dv_stride, args.d_v, args.dropout_scale);
    else
      unit.store(rows, args.dk, args.dk_stride, args.d_qk, args.softmax_scale);
  }
}

}  // namespace fa::backward
