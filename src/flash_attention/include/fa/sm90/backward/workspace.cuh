// SPDX-License-Identifier: Apache-2.0
// dS of a part of the work, in panels of 64 keys and 64 queries as they lie in shared memory: for each
// head of q of the part its panels, those with the same keys next to each other. Keys and queries are
// rounded up to 128.
#pragma once
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

inline constexpr int kPanelRows = 64;
using Panel = SharedTile<kPanelRows, kPanelRows>;  // a row for each key

// The panel of the keys and the queries from these on. `head` is that of q, among those of the part.
__device__ inline char* workspace_panel(const BackwardKernelArgs& args, int head, int key,
                                        int query) {
  const int query_panels = attn::in_stat_blocks(args.seq_len_q) / kPanelRows;
  const int key_panels = attn::in_stat_blocks(args.part_keys) / kPanelRows;
  const i64 panel =
      (static_cast<i64>(head) * key_panels + (key - args.part_key) / kPanelRows) * query_panels +
      query / kPanelRows;
  return static_cast<char*>(args.ds) + panel * Panel::kBytes;
}

// A warp writes P^T or dS^T of its 16 keys: panels of 64 queries, `stride` bytes apart.
template <class Pairs>
__device__ void write_key_rows(const Pairs& pairs, Panel panel, int stride) {
  constexpr int kPanelSteps = kPanelRows / 16;
  constexpr int kSteps = sizeof(pairs.step) / sizeof(pairs.step[0]);
  const int row = warp_in_group() * kWarpRows + lane_id() % 16;
#pragma unroll
  for (int n = 0; n < kSteps; ++n)
    ptx::stmatrix_x4(
        panel.chunk(row, 2 * (n % kPanelSteps) + lane_id() / 16) + n / kPanelSteps * stride,
        pairs.step[n]);
  ptx::fence_proxy_async();  // products and copies see what this lane wrote
}

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::query_gradient {

// dS leaves for a workspace; another kernel computes dQ from it, without additions to global memory. A
// warp stores the rows of its 16 keys by itself.
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
      head_ = mail.read(Word::kPartHead);
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
      const int rows = warp_in_group() * kWarpBytes;
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
