// SPDX-License-Identifier: Apache-2.0
// acc += A B on the tensor cores, in steps of 16 along the contraction. B is cut into tiles of 16
// columns. FragmentLoads says when the fragments of a tile are read; those of A come with the step's first tile.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>
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
  Config::FragmentLoads::template begin<kTiles>(read);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Config::FragmentLoads::template before<kTiles>(tile, read);
    const int step = tile / kStepTiles, n = tile % kStepTiles;
    Config::MmaOrder::template run<Rows / 16, 2>([&](int i, int j) {
      mma<typename Config::DType>(acc.v[i][2 * n + j], a[step][i], b[tile][2 * j],
                                  b[tile][2 * j + 1]);
    });
  }
}

// acc = A B^T along the head dimension. A lane's cursor is at the row and chunk that it gives to ldmatrix.x4.
template <class Config, int Rows, int Cols, class ACursor, class BCursor>
__device__ void multiply_transposed(Accumulator<Rows, Cols>& acc, const ACursor& a_lane,
                                    const BCursor& b_lane) {
  acc.zero();
  multiply<Config, Config::kDHead / 16>(
      acc, [&](u32(&a)[4], int i, int d) { ptx::ldmatrix_x4(a, a_lane.at(16 * i, 2 * d)); },
      [&](u32(&b)[4], int n, int d) { ptx::ldmatrix_x4(b, b_lane.at(16 * n, 2 * d)); });
}

// P or dS of a warp, rounded to 16 bits: pairs of neighbouring columns, as an accumulator has them.
template <int Rows, int Columns>
struct Weights {
  u32 pair[Rows / 16][Columns / 8][2];

  // Columns 16 n .. 16 n + 15 as a left operand: the accumulator's lane map is the operand's.
  __device__ void fragment(u32 (&a)[4], int i, int n) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) a[e] = pair[i][2 * n + e / 2][e % 2];
  }

  // `quad` is at the first row of the lane's quad and the first chunk of columns.
  template <class Cursor>
  __device__ void store(const Cursor& quad) const {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j)
          ptx::st_shared_4(
              quad.at(16 * i + 8 * h, j) + lane_id() % 4 * static_cast<int>(sizeof(u32)),
              pair[i][j][h]);
  }
};

}  // namespace fa::sm80::backward
