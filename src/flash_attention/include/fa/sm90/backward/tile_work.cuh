// SPDX-License-Identifier: Apache-2.0
// What the mailbox says of a tile: the blocks of queries that visit its keys, and where its rows are.
#pragma once
#include <fa/attn/query_range.cuh>
#include <fa/attn/stat_rows.cuh>
#include <fa/sm90/backward/tile.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

template <class Config>
using TileRange = attn::QueryRange<typename Config::Mask, Config::kBR>;

// The first row of a sequence of a head in lse_log2, delta and dq_sum.
__device__ inline i64 stat_row(const BackwardKernelArgs& args, int head, int batch) {
  return static_cast<i64>(head) * args.stat_rows + attn::first_stat_row(args, batch);
}

// The blocks before this one are seen by all keys, if they come after those near the first query.
template <class Config>
__device__ int open_end(const TileRange<Config>& range) {
  if (range.ragged) return 0;
  return Config::Mask::kHasStart ? range.end_first / Config::kBR : range.end_block();
}

template <class Config>
__device__ void write_work(Mailbox mail, Tile tile, const attn::Sequence& sequence,
                           const TileRange<Config>& range, const BackwardKernelArgs& args) {
  mail.write(Word::kKeyFirst, tile.key_first);
  mail.write(Word::kKvHead, tile.kv_head);
  mail.write(Word::kPartHead,
             tile.batch * (args.heads / args.heads_per_kv) + tile.kv_head - args.part_head);
  mail.write(Word::kSteps, (range.end_block() - range.first_block()) * args.heads_per_kv);
  mail.write(Word::kFirstBlock, range.first_block());
  mail.write(Word::kEndBlock, range.end_block());
  mail.write(Word::kOpenFirst, (range.start_last + Config::kBR - 1) / Config::kBR);
  mail.write(Word::kOpenEnd, open_end<Config>(range));
  mail.write(Word::kQLen, sequence.q_len);
  mail.write(Word::kKLen, sequence.k_len);
  mail.write(Word::kStatFirst, attn::first_stat_row(args, tile.batch));
  mail.write(Word::kKFirst, sequence.k_first);
  mail.write(Word::kKBatch, sequence.k_batch);
}

// Where the rows of a sequence are in dq.
__device__ inline void write_query_place(Mailbox mail, const attn::Sequence& sequence) {
  mail.write(Word::kQFirst, sequence.q_first);
  mail.write(Word::kQBatch, sequence.q_batch);
}

}  // namespace fa::sm90::backward
