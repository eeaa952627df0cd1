// SPDX-License-Identifier: Apache-2.0
// dQ of the visited queries: their dS^T times the own keys, added to the sums in global memory. Here
// every warp has kDqWarpRows rows, and every kColWarps-th tile of 16 columns.
#pragma once
#include <fa/backward/rows.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm80/backward/product.cuh>

namespace fa::sm80::backward {

// `sums` are those of the sequence, whose query `first` is the first of dS.
template <class Config, class WeightTile, class OwnTile>
__device__ void add_dq(u32 ds_tile, u32 own_tile, float* sums, int first) {
  constexpr int kRowWarps = Config::kVisitedRows / Config::kDqWarpRows;
  constexpr int kColWarps = Config::kNWarps / kRowWarps;
  static_assert(kRowWarps * kColWarps == Config::kNWarps);
  constexpr int kColumns = Config::kDHead / kColWarps;
  using Address = typename Config::Address;
  const int row = warp_id() / kColWarps * Config::kDqWarpRows;
  const int column = warp_id() % kColWarps;
  const typename Address::template Cursor<WeightTile> ds(
      ds_tile, lane_id() % 8 + lane_id() / 16 * 8, row / kChunkElements + lane_id() / 8 % 2);
  const typename Address::template Cursor<OwnTile> own(own_tile, lane_id() % 16,
                                                       2 * column + lane_id() / 16);
  Accumulator<Config::kDqWarpRows, kColumns> dq;
  dq.zero();
  multiply<Config, Config::kOwnRows / 16>(
      dq, [&](u32(&a)[4], int i, int n) { ptx::ldmatrix_x4_trans(a, ds.at(16 * n, 2 * i)); },
      [&](u32(&b)[4], int d, int n) {
        ptx::ldmatrix_x4_trans(b, own.at(16 * n, 2 * kColWarps * d));
      });
#pragma unroll
  for (int i = 0; i < Config::kDqWarpRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int fragment = Config::Additions::Order::template fragment<Config::kDHead / 8>(
          (first + row) / 16 + i, 2 * (j / 2 * kColWarps + column) + j % 2);
      Config::Additions::add(sums + 128 * fragment, dq.v[i][j]);
    }
}

template <class T>
concept AdditionsSlot = requires(float* fragment, const float (&values)[4]) {
  T::Order::template fragment<8>(0, 0);
  T::add(fragment, values);
};

}  // namespace fa::sm80::backward

namespace fa::sm80::backward::additions {

// dQ is added float by float: one addition of a warp covers 128 contiguous bytes.
struct Floats {
  using Order = fa::backward::sum_order::ByValue;

  static __device__ void add(float* fragment, const float (&values)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) ptx::red_add(fragment + Order::offset(lane_id(), e), values[e]);
  }
};

// A lane adds its four values of a fragment of dQ at once, which sm_90 and newer can.
struct Vectors {
  using Order = fa::backward::sum_order::ByLane;

  static __device__ void add(float* fragment, const float (&values)[4]) {
    ptx::red_add_4(fragment + 4 * lane_id(), values);
  }
};

}  // namespace fa::sm80::backward::additions
