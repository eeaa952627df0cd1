// SPDX-License-Identifier: Apache-2.0
// The key side of a warpgroup that computes dQ by itself. The key warpgroups only write dS, and meet it
// through the mbarriers of the stages of dS.
#pragma once
#include <fa/sm90/backward/query_product.cuh>

namespace fa::sm90::backward {

template <class Config, int Warpgroup>
class DsBuffers {
  using Smem = SharedMemory<Config>;

 public:
  __device__ explicit DsBuffers(const BackwardKernelArgs&) {}
  __device__ void begin_tile(Mailbox) {}
  __device__ void next_head() {}

  template <class Pairs>
  __device__ void hand_over(const Pairs& ds, int /*block*/) {
    ptx::mbarrier_wait(Smem::ds_empty(ds_.stage), ds_.parity ^ 1);  // the dS before was read
    QueryProduct<Config>::template write<Warpgroup>(ds, Smem::ds(ds_.stage));
    __syncwarp();  // all lanes have written
    if (lane_id() == 0) ptx::mbarrier_arrive(Smem::ds_full(ds_.stage));
    ds_.advance();
  }

 private:
  Ring<Config::kDsStages> ds_;
};

}  // namespace fa::sm90::backward
