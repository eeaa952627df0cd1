// SPDX-License-Identifier: Apache-2.0
// The part has some of the keys: its share of dQ is added to dq_sum. Parts follow each other, and no two
// CTAs of a part have the same queries, so the order of additions is always the same.
#pragma once
#include <fa/attn/stat_rows.cuh>
#include <fa/sm90/backward/query_rows.cuh>

namespace fa::sm90::backward::sums {

struct Added {
  template <class Config, class Sum>
  static __device__ void store(const Sum& sum, const QueryRows<Config>& tile, int warpgroup,
                               const TensorMap&) {
    const BackwardKernelArgs& args = tile.args;
    const i64 row = static_cast<i64>(tile.head) * args.stat_rows +
                    attn::first_stat_row(args, tile.batch) + tile.first_row(warpgroup);
    float4* const to = reinterpret_cast<float4*>(args.dq_sum + row * Config::kDHead) +
                       threadIdx.x % kWarpgroupSize;
#pragma unroll
    for (int j = 0; j < Sum::kColFragments; ++j) {
      const float (&x)[4] = sum.v[0][j];
      float4& sums = to[j * kWarpgroupSize];
      sums = {sums.x + x[0], sums.y + x[1], sums.z + x[2], sums.w + x[3]};
    }
  }
};

}  // namespace fa::sm90::backward::sums
