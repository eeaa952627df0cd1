// SPDX-License-Identifier: Apache-2.0
// One thread loads whole boxes by TMA; an mbarrier completes when they have arrived. O is stored as
// boxes too, staged in Q's buffer.
#pragma once
#include <fa/ptx/mbarrier.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/staging.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90::copy {

struct Tma {
  template <class Config>
  class Transfers {
    using QTile = typename Shape<Config>::QTile;
    using KVTile = typename Shape<Config>::KVTile;

   public:
    template <class Maps>
    __device__ Transfers(const Maps& maps, const ForwardKernelArgs& args, Tile tile,
                         ptx::Mbarrier barriers)
        : q_map_(maps.q),
          k_map_(maps.k),
          v_map_(maps.v),
          o_map_(maps.o),
          tile_(tile),
          kv_head_(tile.head / args.heads_per_kv),
          k_full_(barriers),
          v_full_{barriers.address + ptx::kMbarrierBytes} {
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(k_full_, 1);
        ptx::mbarrier_init(v_full_, 1);
        ptx::fence_mbarrier_init();  // TMA sees them
      }
      __syncthreads();  // the barriers are ready
    }

    // Q shares the barrier of the first K: its bytes are added, without another arrival.
    __device__ void load_q(QTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(k_full_, Config::kConsumers * QTile::kBytes);
#pragma unroll
      for (int w = 0; w < Config::kConsumers; ++w)
        load(to.after(w), q_map_, k_full_, tile_.head, first_row + w * kWarpgroupRows);
    }
    __device__ void load_k(KVTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_arrive_expect(k_full_, KVTile::kBytes);
      load(to, k_map_, k_full_, kv_head_, first_row);
    }
    __device__ void load_v(KVTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_arrive_expect(v_full_, KVTile::kBytes);
      load(to, v_map_, v_full_, kv_head_, first_row);
    }
    __device__ void load_nothing() {}

    __device__ void wait_k() {
      ptx::mbarrier_wait(k_full_, k_parity_);  // K has arrived, and Q with the first K
      k_parity_ ^= 1;
    }
    __device__ void wait_v() {
      ptx::mbarrier_wait(v_full_, v_parity_);  // V has arrived
      v_parity_ ^= 1;
    }

    __device__ void store(const WarpOutput<Config>& warp, QTile staged) const {
      stage_and_store(warp, staged, o_map_);
      if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
    }

   private:
    template <class AnyTile>
    __device__ void load(AnyTile to, const TensorMap& map, ptx::Mbarrier full, int head,
                         int row) const {
#pragma unroll
      for (int p = 0; p < AnyTile::kCount; ++p)
        ptx::tma_load_4d(to.panel(p), map, full, p * AnyTile::kColumns, head, row, tile_.batch);
    }

    const TensorMap &q_map_, &k_map_, &v_map_, &o_map_;
    const Tile tile_;
    const int kv_head_;
    const ptx::Mbarrier k_full_, v_full_;
    u32 k_parity_ = 0, v_parity_ = 0;
  };
};

}  // namespace fa::sm90::copy
