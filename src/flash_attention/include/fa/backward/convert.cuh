// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ = softmax_scale dq_sum in 16 bits. The sums are stored in fragments of 16
// rows and 8 columns, as accumulators have them; a thread takes two rows of a fragment.
#pragma once
#include <fa/backward/rows.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

// Eight columns of rows `row` and `row` + 8, which a thread converts.
template <class Config>
struct Octets {
  static constexpr int kFragments = Config::kSumColumns / 8;  // of a row
  static constexpr int kUnits = attn::kStatBlock / 2 * kFragments;

  int row, column;
  float x[2][8];

  __device__ void read(int unit, const float* sums) {
    const int octet = unit / kFragments % 8, tile = unit / kFragments / 8;  // of 16 rows
    row = 16 * tile + octet;
    column = unit % kFragments;
    Config::SumOrder::read(
        x, sums + Config::SumOrder::template fragment<kFragments>(tile, column) * 128, octet);
  }

  __device__ void store(const Rows<Config>& rows) const {
    const BackwardKernelArgs& args = rows.args;
    if (column * 8 >= args.d_qk) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!rows.has(row + 8 * h)) continue;
      const auto pair = [&](int c) {
        return Config::DType::pack(x[h][c] * args.softmax_scale, x[h][c + 1] * args.softmax_scale);
      };
      ptx::st_global_16(static_cast<char*>(args.dq) + rows.offset(args.dq_stride, row + 8 * h) +
                            column * kChunkBytes,
                        {pair(0), pair(2), pair(4), pair(6)});
    }
  }
};

template <class Config>
__device__ void convert(const BackwardKernelArgs& args) {
  using Unit = Octets<Config>;
  // Units that are read before the first is stored.
  constexpr int kTogether = Unit::kUnits % (2 * Config::kThreads) ? 1 : 2;
  static_assert(Unit::kUnits % (kTogether * Config::kThreads) == 0);
  if (Config::kStartsEarly) ptx::wait_for_grid();  // the sums are complete
  const Rows<Config> rows(args);
  if (rows.empty()) return;
  const float* const sums = args.dq_sum + rows.stat_row * Config::kSumColumns;
#pragma unroll 1
  for (int first = threadIdx.x; first < Unit::kUnits; first += kTogether * Config::kThreads) {
    Unit units[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) units[i].read(first + i * Config::kThreads, sums);
#pragma unroll
    for (const Unit& unit : units) unit.store(rows);
  }
}

}  // namespace fa::backward
