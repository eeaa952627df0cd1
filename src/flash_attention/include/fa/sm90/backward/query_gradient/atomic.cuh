// SPDX-License-Identifier: Apache-2.0
// The key warpgroups compute dQ and add it to dq_sum from registers, 16 bytes at a time.
#pragma once
#include <fa/ptx/red.cuh>
#include <fa/sm90/backward/by_key_warpgroups.cuh>

namespace fa::sm90::backward {

struct AddFromRegisters {
  template <class Config, int Warpgroup, class Sum>
  static __device__ void add(const Sum& sum, float* block, int pass) {
    using Math = QueryProduct<Config>;
    float* const to = block + pass * Math::kPassFloats + threadIdx.x % kWarpgroupSize * 4;
#pragma unroll
    for (int j = 0; j < Sum::kColFragments; ++j)
      ptx::red_add_4(to + j * Math::kFragmentFloats, sum.v[0][j]);
  }
};

namespace query_gradient {

struct Atomic : ByKeyWarpgroups<AddFromRegisters> {};

}  // namespace query_gradient
}  // namespace fa::sm90::backward
