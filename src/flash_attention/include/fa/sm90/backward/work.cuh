// SPDX-License-Identifier: Apache-2.0
// The work of a tile: which blocks of queries visit its keys. The producer posts it in a mailbox in
// shared memory, where it stays until all warps are done with the tile, so nobody keeps it in registers.
// There are two mailboxes, so that a tile can be posted before the tile before it is done.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/backward_args.cuh>
#include <fa/core.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward {

// The tiles of the backward pass in shared memory. A CTA has the keys of a tile; it visits blocks of
// queries. A key warpgroup has 64 of the keys, and a warp 16 of these.
template <class Config>
struct Shape {
  static constexpr int kKeyWarpgroups = Config::kBC / kWarpgroupRows;
  static constexpr int kKeyWarps = kKeyWarpgroups * kWarpgroupWarps;
  static constexpr int kQueryPieces = Config::kBR / kWarpgroupRows;  // of a product with 64 rows
  static constexpr int kDqPasses = kQueryPieces * (Config::kDHead / Config::kPassColumns);
  static constexpr int kStatBytes = Config::kBR * static_cast<int>(sizeof(float));
  using KeyTile = SharedTile<Config::kDHead, Config::kBC>;    // K and V, then dK and dV
  using QueryTile = SharedTile<Config::kDHead, Config::kBR>;  // Q and dO
  using ScoreTile = SharedTile<Config::kBC, Config::kBR>;     // dS, a row for each query
};

// The 64 rows of a warpgroup.
template <class Tile>
__device__ Tile rows_of(Tile tile, int warpgroup) {
  return Tile(tile.address + warpgroup * kWarpgroupRows * Tile::kRowBytes);
}

// The tensor maps of the inputs, and of the gradients that leave by TMA.
struct TensorMaps {
  const TensorMap &q, &k, &v, &d_o;
  const TensorMap* dq = nullptr;  // if the kernel stores dQ
  const TensorMap &dk, &dv;
  const TensorMap* bias = nullptr;           // if the kernel loads one
  const TensorMap* bias_gradient = nullptr;  // if it stores tiles of dS as the gradient
};

// A tile is a block of keys of one head of k and v of one sequence, and one of the splits of the heads of q
// that share it. A tile order yields the tiles of a CTA one after the other.
struct Tile {
  int key_first, kv_head, batch, split;
};

// The heads of q of a split, and how many there are. Splits differ by one head at most.
__device__ inline int first_head(const BackwardKernelArgs& args, int kv_head, int split) {
  return kv_head * args.heads_per_kv + split * args.heads_per_kv / args.head_splits;
}
__device__ inline int num_heads(const BackwardKernelArgs& args, int split) {
  return first_head(args, 0, split + 1) - first_head(args, 0, split);
}

// Of the part of the work that this launch does.
template <class Config>
__device__ int num_key_blocks(const BackwardKernelArgs& args) {
  return (args.part_keys + Config::kBC - 1) / Config::kBC;
}

template <class Config>
__device__ int num_tiles(const BackwardKernelArgs& args) {
  return num_key_blocks<Config>(args) * args.part_heads * args.head_splits;
}

// The blocks of up to `group` heads, or splits of heads, side by side, then those of the next group. Groups are
// as large as each other, because a small one at the end would leave multiprocessors idle.
struct BlockOfHead {
  int block, head;
};
__device__ inline BlockOfHead block_in_group(int index, int blocks, int all_heads, int most) {
  const int groups = (all_heads + most - 1) / most;
  const int group = (all_heads + groups - 1) / groups;
  const int first_head = index / (blocks * group) * group;
  const int heads = min(group, all_heads - first_head);
  const int in_group = index - first_head * blocks;
  return {in_group / heads, first_head + in_group % heads};
}

// Under a causal mask blocks become shorter. The longer half of each head comes first, then the shorter half in
// groups of more heads, half of whose queries fit into L2: many short tiles fill the gaps that long ones leave.
inline constexpr int kShortGroups = 4;
__device__ inline BlockOfHead shrinking_block(int index, int blocks, int all_heads, int most) {
  const int longer = blocks / 2, tiles = longer * all_heads;
  if (index < tiles) return block_in_group(index, longer, all_heads, most);
  const auto [block, head] =
      block_in_group(index - tiles, blocks - longer, all_heads, most * kShortGroups);
  return {longer + block, head};
}

template <class Config>
__device__ Tile tile_in_group(int index, const BackwardKernelArgs& args, int group) {
  const int kv_heads = args.heads / args.heads_per_kv;
  const int blocks = num_key_blocks<Config>(args), heads = args.part_heads * args.head_splits;
  const auto in_order = Config::kShrinkingTiles ? shrinking_block : block_in_group;
  const auto [block, split] = in_order(index, blocks, heads, group);
  const int head = args.part_head + split / args.head_splits;
  return {args.part_key + block * Config::kBC, head % kv_heads, head / kv_heads,
          split % args.head_splits};
}

enum class Word : int {
  kKeyFirst,    // of the tile, or kNoMoreTiles
  kKvHead,      // head of k and v
  kHead,        // heads of q: the first,
  kHeads,       // their number,
  kPartHead,    // and the first among those of the part, over all sequences
  kSteps,       // query blocks of all of them
  kFirstBlock,  // query blocks of a head: the first and the end,
  kEndBlock,
  kOpenFirst,  // and those from here
  kOpenEnd,    // to here need no mask
  kQLen,
  kKLen,
  kStatFirst,  // row of the sequence in lse_log2, delta and dq_sum
  kKFirst,     // row of the sequence in k and v
  kKBatch,
  kSumRow,  // of the tile in dk_sum and dv_sum
  kQFirst,  // row of the sequence in dq
  kQBatch,
  kShare,  // of dQ of the block whose sum is staged: Share bits
  kBatch,
  kList,  // of the query blocks that visit the tile, if there are lists
  kCount = 24
};

inline constexpr int kNoMoreTiles = -1;
inline constexpr int kMailboxes = 2;

// The number of tiles that a CTA has begun. Tiles alternate between the mailboxes, and all of them have
// K and V in the same buffers.
struct TileCount {
  u32 tiles = 0;
  __device__ void advance() { ++tiles; }
  __device__ int mailbox() const { return tiles % kMailboxes; }
  // Of the phases of the barriers of this tile's mailbox, and of those of K and V.
  __device__ u32 mail_parity() const { return tiles / kMailboxes % 2; }
  __device__ u32 key_parity() const { return tiles % 2; }
};

struct Mailbox {
  static constexpr int kBytes = static_cast<int>(Word::kCount) * 4;
  u32 address;

  // The first address for mailboxes after `end`.
  static __device__ constexpr u32 after(u32 end) {
    return (end + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  }
  __device__ void write(Word word, int x) const {
    ptx::st_shared_4(address + static_cast<int>(word) * 4, static_cast<u32>(x));
  }
  // The word is the same in all lanes. The shuffle tells the compiler.
  __device__ int read(Word word) const { return __shfl_sync(~0u, read_alone(word), 0); }
  __device__ int read_alone(Word word) const {
    return static_cast<int>(ptx::ld_shared_4(address + static_cast<int>(word) * 4));
  }
};

// What the mailbox says of a tile: the blocks of queries that visit its keys, and where its rows are.
template <class Config>
using TileRange = attn::QueryRange<typename Config::Mask, Config::kBR>;

// The first row of a sequence of a head in lse_log2, delta and dq_sum.
__device__ inline i64 stat_row(const BackwardKernelArgs& args, int head, int batch) {
  return static_cast<i64>(head) * args.stat_rows + attn::first_stat_row(args, batch);
}

// The blocks before this one are seen by all keys, if they come after those near the first query.
template <class Config>
__device__ int open_end(const TileRange<Config>& range, const attn::Sequence& sequence) {
  using Function = typename Config::Function;
  if (range.ragged || (Function::kMasks && !Function::kListed)) return 0;
  const int end = Config::Mask::kHasStart ? range.end_first / Config::kBR : range.end_block();
  // What a function makes of a row after the last query may be anything.
  return Function::kScores ? min(end, sequence.q_len / Config::kBR) : end;
}

// The list of the query blocks that visit a tile, whose places take the place of blocks.
template <class Config>
__device__ void write_list(Mailbox mail, Tile tile, const BackwardKernelArgs& args) {
  using Function = typename Config::Function;
  const int tiles = (args.seq_len_k + Config::kBC - 1) / Config::kBC;
  const int first = tile.batch % Function::of(args).list_batches * tiles;
  const int number = Function::list_number(args, first + tile.key_first / Config::kBC,
                                           first_head(args, tile.kv_head, tile.split));
  const auto counts = Function::list(args, number).counts;
  mail.write(Word::kList, number);
  mail.write(Word::kSteps, counts.count * num_heads(args, tile.split));
  mail.write(Word::kFirstBlock, 0);
  mail.write(Word::kEndBlock, counts.count);
  mail.write(Word::kOpenFirst, counts.open_first);
  mail.write(Word::kOpenEnd, counts.open_end);
}

// The query block at a place of the walk: its entry, if there are lists, which it is read from.
template <class Config>
__device__ u32 query_entry(int place, Mailbox mail, const BackwardKernelArgs& args) {
  if constexpr (Config::Function::kListed)
    return Config::Function::list_entry(args, mail.read_alone(Word::kList), place);
  return place;
}
template <class Config>
__device__ int query_block(u32 entry) {
  if constexpr (Config::Function::kListed) return Config::Function::block(entry);
  return static_cast<int>(entry);
}
template <class Config>
__device__ int query_block(int place, Mailbox mail, const BackwardKernelArgs& args) {
  return query_block<Config>(query_entry<Config>(place, mail, args));
}

template <class Config>
__device__ void write_work(Mailbox mail, Tile tile, const attn::Sequence& sequence,
                           const TileRange<Config>& range, const BackwardKernelArgs& args) {
  mail.write(Word::kKeyFirst, tile.key_first);
  mail.write(Word::kKvHead, tile.kv_head);
  const int head = first_head(args, tile.kv_head, tile.split), heads = num_heads(args, tile.split);
  mail.write(Word::kHead, head);
  mail.write(Word::kHeads, heads);
  mail.write(Word::kPartHead, tile.batch * args.heads + head - args.part_head * args.heads_per_kv);
  mail.write(Word::kSteps, (range.end_block() - range.first_block()) * heads);
  mail.write(Word::kFirstBlock, range.first_block());
  mail.write(Word::kEndBlock, range.end_block());
  mail.write(Word::kOpenFirst, (range.start_last + Config::kBR - 1) / Config::kBR);
  mail.write(Word::kOpenEnd, open_end<Config>(range, sequence));
  mail.write(Word::kQLen, sequence.q_len);
  mail.write(Word::kKLen, sequence.k_len);
  mail.write(Word::kStatFirst, attn::first_stat_row(args, tile.batch));
  mail.write(Word::kKFirst, sequence.k_first);
  mail.write(Word::kKBatch, sequence.k_batch);
  if (Config::Function::kScores || Config::Function::kMasks) mail.write(Word::kBatch, tile.batch);
  if constexpr (Config::Function::kListed) write_list<Config>(mail, tile, args);
  const int sum = Config::kAddsHeads > 0 ? 0 : tile.split;
  const int sum_head = sum * (args.heads / args.heads_per_kv) + tile.kv_head;
  mail.write(Word::kSumRow,
             sum_head * args.key_rows + attn::first_key_row(args, tile.batch) + tile.key_first);
}

// Where the rows of a sequence are in dq.
__device__ inline void write_query_place(Mailbox mail, const attn::Sequence& sequence) {
  mail.write(Word::kQFirst, sequence.q_first);
  mail.write(Word::kQBatch, sequence.q_batch);
}

}  // namespace fa::sm90::backward
