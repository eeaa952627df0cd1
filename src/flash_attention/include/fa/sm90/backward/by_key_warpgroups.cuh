// SPDX-License-Identifier: Apache-2.0
// The key warpgroups compute dQ = dS K themselves, every second pass each: they write dS, wait for each
// other, and read the dS of all keys. `Leave` adds a pass to dq_sum.
#pragma once
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/tails.cuh>

namespace fa::sm90::backward {

template <class Leave>
struct ByKeyWarpgroups {
  template <class Config, int Warpgroup>
  class KeySide {
    using Smem = SharedMemory<Config>;
    using Math = QueryProduct<Config>;
    static_assert(Math::kPasses % Shape<Config>::kKeyWarpgroups == 0);

   public:
    __device__ explicit KeySide(const BackwardKernelArgs& args) : place_(args) {}
    __device__ void begin_tile(Mailbox mail) { place_.begin_tile(mail); }
    __device__ void next_head() { place_.next_head(); }

    template <class Pairs>
    __device__ void hand_over(const Pairs& ds, int block) {
      Math::template write<Warpgroup>(ds, Smem::ds(ds_.stage));
      sync_key_warpgroups<Config>();  // dS is complete
#pragma unroll
      for (int pass = Warpgroup; pass < Math::kPasses; pass += Shape<Config>::kKeyWarpgroups) {
        typename Math::Sum sum;
        Math::issue(sum, Smem::ds(ds_.stage), Smem::k(), pass);
        ptx::wgmma_wait<0>();  // dQ is complete
        Leave::template add<Config, Warpgroup>(sum, place_.block(block), pass);
      }
      if (Config::kDsStages == 1) sync_key_warpgroups<Config>();  // dS was read
      ds_.advance();
    }

   private:
    SumPlace<Config> place_;
    Ring<Config::kDsStages> ds_;
  };
};

}  // namespace fa::sm90::backward
