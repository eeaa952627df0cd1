// SPDX-License-Identifier: Apache-2.0
// The key warpgroups compute dQ and stage it; bulk copies add it to dq_sum.
#pragma once
#include <fa/ptx/bulk.cuh>
#include <fa/sm90/backward/by_key_warpgroups.cuh>

namespace fa::sm90::backward {

struct AddFromStaging {
  template <class Config, int Warpgroup, class Sum>
  static __device__ void add(const Sum& sum, float* block, int pass) {
    using Math = QueryProduct<Config>;
    static_assert(Config::kDqBytes == Math::kPasses * Math::kPassBytes);
    const bool leads = threadIdx.x % kWarpgroupSize == 0;
    const u32 staged = SharedMemory<Config>::kDq + pass * Math::kPassBytes;
    if (leads) ptx::bulk_wait_read<0>();  // the addition before has read it
    sync_warpgroup(Warpgroup);            // everybody may write over it
    Math::stage(sum, staged);
    sync_warpgroup(Warpgroup);  // everybody has written
    if (!leads) return;
    ptx::bulk_add_f32(block + pass * Math::kPassFloats, staged, Math::kPassBytes);
    ptx::tma_commit();
  }
};

namespace query_gradient {

struct Staged : ByKeyWarpgroups<AddFromStaging> {};

}  // namespace query_gradient
}  // namespace fa::sm90::backward
