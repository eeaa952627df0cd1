// SPDX-License-Identifier: Apache-2.0
// dS of a part of the work, in panels of 64 keys and 64 queries as they lie in shared memory: for each
// head of q of the part its panels, those with the same keys next to each other. Keys and queries are
// rounded up to 128.
#pragma once
#include <fa/attn/stat_rows.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/stmatrix.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/backward/shape.cuh>

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
  const int row = warp_id() % kWarps * kWarpRows + lane_id() % 16;
#pragma unroll
  for (int n = 0; n < kSteps; ++n)
    ptx::stmatrix_x4(
        panel.chunk(row, 2 * (n % kPanelSteps) + lane_id() / 16) + n / kPanelSteps * stride,
        pairs.step[n]);
  ptx::fence_proxy_async();  // products and copies see what this lane wrote
}

}  // namespace fa::sm90::backward
