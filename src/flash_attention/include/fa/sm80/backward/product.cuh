// SPDX-License-Identifier: Apache-2.0
// acc += A B on the tensor cores, in steps of 16 along the contraction. B is cut into tiles of 16
// columns. Feed says when the fragments of a tile are read; those of A come with the step's first tile.
#pragma once
#include <fa/sm80/mma.cuh>

namespace fa::sm80::backward {

// read_a(a, i, step) reads the 16 rows of fragment i, read_b(b, n, step) the 16 columns of tile n.
template <class Config, int Steps, int Rows, int Cols, class ReadA, class ReadB>
__device__ void multiply(Accumulator<Rows, Cols>& acc, ReadA read_a, ReadB read_b) {
  constexpr int kStepTiles = Cols / 16, kTiles = Steps * kStepTiles;
  u32 a[Steps][Rows / 16][4], b[kTiles][4];
  const auto read = [&](int tile) {
    const int step = tile / kStepTiles, n = tile % kStepTiles;
    if (n == 0) {
#pragma unroll
      for (int i = 0; i < Rows / 16; ++i) read_a(a[step][i], i, step);
    }
    read_b(b[tile], n, step);
  };
  Config::Feed::template begin<kTiles>(read);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Config::Feed::template before<kTiles>(tile, read);
    const int step = tile / kStepTiles, n = tile % kStepTiles;
    Config::MmaOrder::template run<Rows / 16, 2>([&](int i, int j) {
      mma<typename Config::DType>(acc.v[i][2 * n + j], a[step][i], b[tile][2 * j],
                                  b[tile][2 * j + 1]);
    });
  }
}

}  // namespace fa::sm80::backward
