// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ = softmax_scale dq_sum in 16 bits. The sums are stored in fragments of 16
// rows and 8 columns, as accumulators have them; a thread takes two rows of a fragment.
#pragma once
#include <fa/backward/rows.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

template <class Config>
__device__ void convert(const BackwardKernelArgs& args) {
  using DType = typename Config::DType;
  constexpr int kFragments = Config::kSumColumns / 8;  // of a row
  const Rows<Config> rows(args);
  if (rows.empty()) return;
  const float* const sums = args.dq_sum + rows.stat_row * Config::kSumColumns;
#pragma unroll 2
  for (int unit = threadIdx.x; unit < attn::kStatBlock / 2 * kFragments; unit += Config::kThreads) {
    const int column = unit % kFragments, octet = unit / kFragments % 8;
    const int tile = unit / kFragments / 8;  // of 16 rows
    if (column * 8 >= args.d_qk) continue;
    float x[2][8];
    Config::SumOrder::read(
        x, sums + Config::SumOrder::template fragment<kFragments>(tile, column) * 128, octet);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * tile + octet + 8 * h;
      if (!rows.has(row)) continue;
      const auto pair = [&](int c) {
        return DType::pack(x[h][c] * args.softmax_scale, x[h][c + 1] * args.softmax_scale);
      };
      ptx::st_global_16(
          static_cast<char*>(args.dq) + rows.offset(args.dq_stride, row) + column * kChunkBytes,
          {pair(0), pair(2), pair(4), pair(6)});
    }
  }
}

}  // namespace fa::backward
