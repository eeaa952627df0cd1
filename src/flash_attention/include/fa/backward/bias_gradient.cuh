// SPDX-License-Identifier: Apache-2.0
// The gradient of a captured tensor [outer, inner, queries, keys] of 16-bit floats from a workspace with dS of all
// heads of all sequences and some of the keys. Heads that read the same plane are added up in float32, always in
// the same order. dS is there for what queries see alone.
#pragma once
#include <fa/attn/function_args.cuh>
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/dtype.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::backward {

inline constexpr int kChunkKeys = 8;  // of 16 bytes

// The workspace, [batch, heads, queries, keys of the part], whose rows begin at multiples of 16 bytes.
template <class Config, class Program, class Args>
class TileSums {
 public:
  struct Chunk {
    float sums[kChunkKeys];
  };

  __device__ explicit TileSums(const Args& args)
      : args_(args),
        mask_(args),
        row_keys_((args.part_keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys) {
    sequence_.q_len = args.seq_len_q;
    sequence_.k_len = args.seq_len_k;
  }

  // dS of the heads that read a plane, for a query of each lane and the keys from `key` on. All lanes of a warp
  // have the same plane.
  __device__ Chunk add(attn::function::Plane plane, int query, int key) const {
    Chunk found = {};
    const int count = args_.batch * args_.heads;
    for (int first = 0; first < count; first += kWarpSize) {
      const int own = first + lane_id();
      const auto read =
          Program::gradient_plane(args_.program, own / args_.heads, own % args_.heads);
      const bool reads = own < count && read.inner == plane.inner && read.outer == plane.outer;
      for (u32 left = __ballot_sync(~0u, reads); left; left &= left - 1)
        add_head(found, first + __ffs(static_cast<int>(left)) - 1, query, key);
    }
    return found;
  }

 private:
  // `head` counts the heads of all sequences. Of a block of keys that no query of it sees nothing was stored.
  __device__ void add_head(Chunk& to, int head, int query, int key) const {
    if (query >= sequence_.q_len) return;
    const int first = mask_.first_key(query, sequence_) - key;
    const int end = mask_.end_key(query, sequence_) - key;
    u32 seen = 0;  // a bit for each key
#pragma unroll
    for (int n = 0; n < kChunkKeys; ++n)
      if (n >= first && n < end && is_seen(head, query, key + n)) seen |= 1u << n;
    if (!seen) return;
    const i64 row = (static_cast<i64>(head) * sequence_.q_len + query) * row_keys_;
    const auto* const ds = static_cast<const u32*>(args_.ds) + (row + key - args_.part_key) / 2;
    const uint4 pairs = __ldg(reinterpret_cast<const uint4*>(ds));
    const u32 each[] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int n = 0; n < kChunkKeys; ++n) {
      using DType = typename Config::DType;
      if (seen >> n & 1) to.sums[n] += n % 2 ? DType::high(each[n / 2]) : DType::low(each[n / 2]);
    }
  }

  __device__ bool is_seen(int head_of_all, int query, int key) const {
    if constexpr (!Program::kHasMask) return true;
    const int batch = head_of_all / args_.heads, head = head_of_all % args_.heads;
    const auto of_head = Program::of_head(args_.program, batch, head);
    const auto of_query = Program::of_query(args_.program, of_head, batch, head, query);
    const auto of_key = Program::of_key(args_.program, of_head, batch, head, key);
    return Program::mask(args_.program, of_head, of_query, of_key, batch, head, query, key);
  }

  const Args& args_;
  const typename Config::Mask mask_;
  const int row_keys_;
  attn::Sequence sequence_ = {};
};

// Some of the elements from `to` on.
template <class DType>
__device__ void store_chunk(unsigned short* to, const float (&x)[kChunkKeys], int count) {
  u32 pairs[kChunkKeys / 2];
#pragma unroll
  for (int n = 0; n < kChunkKeys; n += 2) pairs[n / 2] = DType::pack(x[n], x[n + 1]);
  if (count >= kChunkKeys && reinterpret_cast<u64>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    return;
  }
#pragma unroll
  for (int n = 0; n < kChunkKeys; ++n)
    if (n < count) to[n] = static_cast<unsigned short>(pairs[n / 2] >> n % 2 * 16);
}

// A CTA has kRows rows of a plane. Rows and keys of the tensor that the call has not are zero.
template <class Config, class Program, class Args>
__device__ void bias_gradient(const Args& args) {
  const TileSums<Config, Program, Args> tiles(args);
  const auto gradient = Program::gradient(args.program);
  const int row_blocks = (gradient.queries + Config::kRows - 1) / Config::kRows;
  const int number = blockIdx.x / row_blocks;
  const attn::function::Plane plane{number % gradient.inner, number / gradient.inner};
  const int first_row = static_cast<int>(blockIdx.x) % row_blocks * Config::kRows;
  const int rows = min(Config::kRows, gradient.queries - first_row);
  const int end = args.part_key + args.part_keys;
  const int keys = (end < args.seq_len_k ? end : gradient.keys) - args.part_key;
  const int chunks = (keys + kChunkKeys - 1) / kChunkKeys;
  for (int first = warp_id() * kWarpSize; first < rows * chunks; first += Config::kThreads) {
    const int item = min(first + lane_id(), rows * chunks - 1);
    const int query = first_row + item / chunks, key = item % chunks * kChunkKeys;
    const auto found = tiles.add(plane, query, args.part_key + key);
    if (first + lane_id() < rows * chunks)
      store_chunk<typename Config::Own>(gradient.row(plane, query) + args.part_key + key,
                                        found.sums, keys - key);
  }
}

}  // namespace fa::backward
