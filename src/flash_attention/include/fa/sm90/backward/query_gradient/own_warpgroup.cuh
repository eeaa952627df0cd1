// SPDX-License-Identifier: Apache-2.0
// A third warpgroup computes dQ = dS K, stages it and adds it to dq_sum by bulk copies.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward::query_gradient {

struct OwnWarpgroup {
  template <class Config, int Warpgroup>
  using KeySide = DsBuffers<Config, Warpgroup>;

  template <class Config>
  class QueryWarpgroup {
    using Smem = SharedMemory<Config>;
    using Math = QueryProduct<Config>;
    static constexpr int kIndex = Shape<Config>::kKeyWarpgroups;  // after the key warpgroups

   public:
    __device__ QueryWarpgroup(const TensorMaps& maps, const BackwardKernelArgs& args)
        : args_(args), place_(args), bias_gradient_(maps, args) {}

    __device__ void run() {
      while (take_tile<Config>(tile_, steps_, block_)) {
        place_.begin_tile(Smem::mail(tile_));
        bias_gradient_.begin_tile(Smem::mail(tile_));
        Smem::key_pipeline().wait(0, tile_.key_parity(), Smem::kKPart);  // K has arrived
#pragma unroll 1
        for (; steps_ > 0; --steps_) {
          const int block = query_block<Config>(block_, Smem::mail(tile_), args_);
          Smem::ds_pipeline().wait(ds_);  // dS is written
          if (leads()) bias_gradient_.store(Smem::mail(tile_), ds_.stage, block * Config::kBR);
#pragma unroll 1
          for (int pass = 0; pass < Math::kPasses; ++pass) add(pass, block);
          ds_.advance();
          if (BlockWalk<Config>::next(block_, Smem::mail(tile_))) {
            place_.next_head();
            bias_gradient_.next_head();
          }
        }
        __syncwarp();  // all lanes have read the mailbox, and the last product K
        Smem::key_pipeline().release(0);
        Smem::mail_pipeline().release(tile_.mailbox());
        tile_.advance();
      }
      if (leads()) ptx::tma_wait();  // shared memory outlives the additions that read it
    }

   private:
    // Each pass has its own part of the staging buffer. Of what the copy engine reads, the store of dS comes first,
    // so that the wait of the last pass is for it, too.
    __device__ void add(int pass, int block) {
      typename Math::Sum sum;
      const u32 staged = Smem::kDq + pass * Math::kPassBytes;
      Math::issue(sum, Smem::ds(ds_.stage), Smem::k(), pass);
      if (leads()) ptx::bulk_wait_read<Math::kPasses - 1>();  // the addition before has read it
      sync_warpgroup(kIndex);                                 // everybody may write over it
      ptx::wgmma_wait<0>();                                   // dQ is complete, dS and K were read
      if (pass == Math::kPasses - 1) Smem::ds_pipeline().release(ds_);
      Math::stage(sum, staged);
      sync_warpgroup(kIndex);  // everybody has written
      if (leads()) {
        ptx::bulk_add_f32(place_.block(block) + pass * Math::kPassFloats, staged, Math::kPassBytes);
        ptx::tma_commit();
      }
    }

    static __device__ bool leads() { return threadIdx.x % kWarpgroupSize == 0; }

    const BackwardKernelArgs& args_;
    SumPlace<Config> place_;
    typename Config::BiasGradient::template Of<Config> bias_gradient_;
    Ring<Config::kDsStages> ds_;
    TileCount tile_;
    int steps_, block_;
  };
};

}  // namespace fa::sm90::backward::query_gradient
