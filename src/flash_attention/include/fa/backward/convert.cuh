// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ = softmax_scale dq_sum in 16 bits.
#pragma once
#include <fa/backward/rows.cuh>
#include <fa/ptx/async.cuh>

namespace fa::backward {

template <class Config>
__device__ void convert_rows(const BackwardKernelArgs& args, int cta) {
  using Unit = Octets<Config>;
  // Units that are read before the first is stored.
  constexpr int kRounds = Unit::kUnits / Config::kThreads;
  constexpr int kTogether = kRounds % 4 == 0 ? 4 : kRounds % 3 == 0 ? 3 : kRounds % 2 == 0 ? 2 : 1;
  static_assert(Unit::kUnits % (kTogether * Config::kThreads) == 0);
  const Rows<Config> rows(args, RowBlock<Config>(args, cta));
  if (Config::kStartsEarly) ptx::wait_for_grid();  // the sums are complete
  if (rows.empty()) return;
  const float* const sums = args.dq_sum + rows.stat_row * Config::kSumColumns;
#pragma unroll 1
  for (int first = threadIdx.x; first < Unit::kUnits; first += kTogether * Config::kThreads) {
    Unit units[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) units[i].read(first + i * Config::kThreads, sums);
#pragma unroll
    for (const Unit& unit : units)
      unit.store(rows, args.dq, args.dq_stride, args.d_qk, args.softmax_scale);
  }
}

template <class Config>
__device__ void convert(const BackwardKernelArgs& args) {
  convert_rows<Config>(args, blockIdx.x);
}

}  // namespace fa::backward
