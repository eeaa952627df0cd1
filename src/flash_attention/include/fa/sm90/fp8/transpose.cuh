// SPDX-License-Identifier: Apache-2.0
// Transposes V into the tiles of value_tile.cuh, before the attention kernel. A CTA has 64 keys of a head, a
// warp 16 of them. Keys after the last and columns that V does not have are zero.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/fp8/pages.cuh>
#include <fa/sm90/fp8/value_tile.cuh>

namespace fa::sm90::fp8 {

template <class Config>
__device__ void transpose(const Fp8KernelArgs& args) {
  using Lengths = typename Config::Lengths;
  using Tile = ValueTile<Config::kDHead + Config::Sums::kRows, Config::kTransposedKeys>;
  constexpr int kThreads = Config::kTransposedKeys / Tile::kGroupKeys * kWarpSize;
  constexpr int kRowChunks = Config::kDHead / kChunkBytes;
  constexpr int kPitch = Config::kDHead + kChunkBytes;  // reads of ldmatrix meet no bank conflict
  __shared__ __align__(16) char rows[Config::kTransposedKeys * kPitch];
  ptx::launch_dependents();
  const int step = args.v_tiles_step;
  const int blocks = (args.seq_len_k + step - 1) / step * step / Config::kTransposedKeys;
  const int head_of_all = blockIdx.x / blocks;
  const int heads = args.heads / args.heads_per_kv, place = head_of_all / heads;
  const int batch = sequence_in_tiles<Lengths>(args, place);
  const int head = head_of_all % heads;
  const int first_key = blockIdx.x % blocks * Config::kTransposedKeys;
  const attn::Sequence sequence = Lengths::sequence(args, batch);
  if (Lengths::kLeastQueries > 0 &&
      (sequence.q_len == 0 || place_in_tiles<Lengths>(args, batch) != place))
    return;
  const int num_keys = sequence.k_len;
  if (first_key >= (num_keys + step - 1) / step * step) return;  // no block is loaded from there
  const typename Config::Pages::ValueRows values(args, sequence, batch, head);
  const u32 staged = ptx::smem_address(rows);
#pragma unroll
  for (int i = threadIdx.x; i < Config::kTransposedKeys * kRowChunks; i += kThreads) {
    const int key = i / kRowChunks, chunk = i % kRowChunks;
    ptx::Chunk x = {};
    if (first_key + key < num_keys && chunk * kChunkBytes < args.d_v)
      if (const char* const row = values.row(first_key + key))
        x = ptx::ld_global_16(row + chunk * kChunkBytes);
    ptx::st_shared_16(staged + key * kPitch + chunk * kChunkBytes, x);
  }
  __syncthreads();  // all 64 keys are staged
  char* const to = static_cast<char*>(args.v_tiles) +
                   (first_in_tiles<Lengths>(args, batch, head) + first_key) * Tile::kRows +
                   warp_id() * Tile::kGroupBytes + lane_id() * 4;
  // Matrices of byte pairs: keys 0 to 7 and 8 to 15 of 16 columns, then of the next 16. A lane gets two
  // neighbouring columns of its keys; the bytes of one column of each are a word of the transpose.
  const u32 lane =
      staged + (warp_id() * 16 + lane_id() % 16) * kPitch + lane_id() / 16 * kChunkBytes;
#pragma unroll
  for (int d = 0; d < Config::kDHead; d += 32) {
    u32 pairs[4];
    ptx::ldmatrix_x4_trans(pairs, lane + d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      char* const row = to + (d + 16 * half) * Tile::kGroupKeys;
      ptx::st_global_4(row, __byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x6420));
      ptx::st_global_4(row + 8 * Tile::kGroupKeys,
                       __byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x7531));
    }
  }
  Config::Sums::store_rows(to + Config::kDHead * Tile::kGroupKeys);
}

}  // namespace fa::sm90::fp8
