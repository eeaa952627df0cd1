// SPDX-License-Identifier: Apache-2.0
// The slot QueryGradient: who computes dQ, and how its terms are added up. Larger variants have headers of
// their own.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/products.cuh>
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

template <class T, class Config>
concept QueryGradientSlot =
    requires(typename T::template KeySide<Config, 0>& side,
             const typename Products<Config>::Pairs& ds, const BackwardKernelArgs& args) {
      { typename T::template KeySide<Config, 0>(args) };
      side.begin_tile(Mailbox{});
      side.hand_over(ds, 0);
      side.next_head();
    };

// The key warpgroups compute dQ = dS K themselves, every second pass each: they write dS, wait for each
// other, and read the dS of all keys. `Leave` adds a pass to dq_sum.
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

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::query_gradient {

// dQ is not wanted: dS is used for dK and forgotten.
struct None {
  static constexpr bool kStoresDs = false;

  template <class Config, int Warpgroup>
  struct KeySide {
    __device__ explicit KeySide(const BackwardKernelArgs&) {}
    __device__ void begin_tile(Mailbox) {}
    __device__ void next_head() {}
    template <class Pairs>
    __device__ void hand_over(const Pairs&, int /*block*/) {}
  };
};

// The key warpgroups compute dQ and add it to dq_sum from registers, 16 bytes at a time.
struct Atomic : ByKeyWarpgroups<AddFromRegisters> {};

// The key warpgroups compute dQ and stage it; bulk copies add it to dq_sum.
struct Staged : ByKeyWarpgroups<AddFromStaging> {};

}  // namespace fa::sm90::backward::query_gradient
