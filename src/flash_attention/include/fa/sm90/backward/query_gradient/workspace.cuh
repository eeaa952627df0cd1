// SPDX-License-Identifier: Apache-2.0
// dS leaves for a workspace; another kernel computes dQ from it, without additions to global memory. A
// warp stores the rows of its 16 keys by itself.
#pragma once
#include <fa/ptx/bulk.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/workspace.cuh>

namespace fa::sm90::backward::query_gradient {

struct Workspace {
  static constexpr bool kStoresDs = true;

  template <class Config, int Warpgroup>
  class KeySide {
    using Smem = SharedMemory<Config>;
    static constexpr int kPanels = Config::kBR / kPanelRows;
    static constexpr int kWarpBytes = kWarpRows * Panel::kRowBytes;

   public:
    __device__ explicit KeySide(const BackwardKernelArgs& args) : args_(args) {}
    __device__ void begin_tile(Mailbox mail) {
      key_ = mail.read(Word::kKeyFirst) + Warpgroup * kWarpgroupRows;
      head_ = mail.read(Word::kPartHead) * args_.heads_per_kv;
    }
    __device__ void next_head() { ++head_; }

    template <class Pairs>
    __device__ void hand_over(const Pairs& ds, int block) {
      const Panel panel(Smem::kDs + ((ds_.stage * 2 + Warpgroup) * kPanels) * Panel::kBytes);
      if (lane_id() == 0) ptx::bulk_wait_read<Config::kDsStages - 1>();  // this stage was read
      __syncwarp();  // all lanes may write over it
      write_key_rows(ds, panel, Panel::kBytes);
      __syncwarp();  // all lanes have written
      if (lane_id() == 0) store(panel.address, block);
      ds_.advance();
    }

   private:
    __device__ void store(u32 panel, int block) const {
      const int rows = warp_id() % kWarps * kWarpBytes;
      char* const to = workspace_panel(args_, head_, key_, block * Config::kBR) + rows;
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        ptx::bulk_store(to + p * Panel::kBytes, panel + p * Panel::kBytes + rows, kWarpBytes);
      ptx::tma_commit();
    }

    const BackwardKernelArgs& args_;
    Ring<Config::kDsStages> ds_;
    int key_;   // the first of this warpgroup
    int head_;  // of q, among those of the part
  };
};

}  // namespace fa::sm90::backward::query_gradient
