// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, posts each, and loads its K and V, and Q and dO
// of the blocks that visit it as buffers become empty.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

template <class Config>
class Producer {
  using Smem = SharedMemory<Config>;
  using KeyTile = typename Smem::KeyTile;
  using QueryTile = typename Smem::QueryTile;
  using Range = TileRange<Config>;

 public:
  __device__ Producer(const TensorMaps& maps, const BackwardKernelArgs& args)
      : maps_(maps), args_(args) {}

  __device__ void run() {
    ptx::tma_prefetch_map(maps_.q);
    ptx::tma_prefetch_map(maps_.k);
    ptx::tma_prefetch_map(maps_.v);
    ptx::tma_prefetch_map(maps_.d_o);
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile;
    while (walk.next(tile)) visit(tile, Config::Lengths::sequence(args_, tile.batch));
    wait_mailbox();
    Smem::mail(count_).write(Word::kKeyFirst, kNoMoreTiles);
    post();
    walk.finish();
  }

 private:
  __device__ void visit(Tile tile, const attn::Sequence& sequence) {
    if (tile.key_first >= sequence.k_len) return;  // other sequences are longer
    const Range range(typename Config::Mask(args_), tile.key_first, Config::kBC, sequence);
    wait_mailbox();
    write_work<Config>(Smem::mail(count_), tile, sequence, range, args_);
    if (Config::kWriterWarps > 0) write_query_place(Smem::mail(count_), sequence);
    post();
    prefetch_keys(maps_.k, tile, sequence);
    prefetch_keys(maps_.v, tile, sequence);
    if (count_.tiles == 0) ptx::wait_for_grid();  // the kernel before has stored the statistics
    bool has_keys = false;
    const int first = first_head(args_, tile.kv_head, tile.split);
    for (int head = first; head < first + num_heads(args_, tile.split); ++head) {
      const i64 stats = stat_row(args_, head, tile.batch);
      for (int block = range.first_block(); block < range.end_block(); ++block) {
        const int row =
            BlockWalk<Config>::nth(block, range.first_block(), range.end_block()) * Config::kBR;
        load_queries(Smem::q_pipeline(), Smem::kQLanded, maps_.q, Smem::kLse,
                     args_.lse_log2 + stats + row, head, row, sequence);
        load_queries(Smem::d_o_pipeline(), Smem::kDOLanded, maps_.d_o, Smem::kDelta,
                     args_.delta + stats + row, head, row, sequence);
        // The buffers of K and V become empty after those of the first Q and dO.
        if (!has_keys) load_keys(tile, sequence);
        has_keys = true;
        ring_.advance();
      }
    }
    if (!has_keys) load_keys(tile, sequence);
    count_.advance();
    while (ring_.stage > 0) skip_stage();
  }

  // The next tile starts at stage 0.
  __device__ void skip_stage() {
    Smem::q_pipeline().acquire(ring_);
    ptx::mbarrier_arrive(Smem::q_pipeline().full(ring_.stage));
    Smem::d_o_pipeline().acquire(ring_);
    ptx::mbarrier_arrive(Smem::d_o_pipeline().full(ring_.stage));
    ring_.advance();
  }

  // Waits until all are done with the tile before the last one.
  __device__ void wait_mailbox() const { Smem::mail_pipeline().acquire(count_); }
  __device__ void post() const {
    ptx::mbarrier_arrive(Smem::mail_pipeline().full(count_.mailbox()));
  }

  __device__ void load_keys(Tile tile, const attn::Sequence& sequence) const {
    const auto keys = Smem::key_pipeline();
    keys.acquire(0, count_.key_parity());  // all have released them
    const int rows = sequence.k_len - tile.key_first;
    load_keys(Smem::k(), maps_.k, full<KeyTile>(keys.full(0, Smem::kKPart), Smem::kKLanded, rows),
              tile, sequence);
    load_keys(Smem::v(), maps_.v, full<KeyTile>(keys.full(0, Smem::kVPart), Smem::kVLanded, rows),
              tile, sequence);
  }
  __device__ void load_keys(KeyTile to, const TensorMap& map, ptx::Mbarrier full, Tile tile,
                            const attn::Sequence& sequence) const {
    ptx::mbarrier_arrive_expect(full, KeyTile::kBytes);
#pragma unroll
    for (int p = 0; p < KeyTile::kCount; ++p)
      ptx::tma_load_4d(to.panel(p), map, full, p * KeyTile::kColumns, tile.kv_head,
                       sequence.k_first + tile.key_first, sequence.k_batch);
  }

  // The barrier that the copy of a tile completes: where the sequence has fewer than its rows, the clearer's.
  template <class Tile>
  static __device__ ptx::Mbarrier full(ptx::Mbarrier full, int landed, int rows) {
    if constexpr (Config::Lengths::kPerBatch)
      if (rows < Tile::kRows) return Smem::landed().full(landed);
    return full;
  }

  // The buffers of K and V are still those of the tile before.
  __device__ void prefetch_keys(const TensorMap& map, Tile tile,
                                const attn::Sequence& sequence) const {
#pragma unroll
    for (int p = 0; p < KeyTile::kCount; ++p)
      ptx::tma_prefetch_4d(map, p * KeyTile::kColumns, tile.kv_head,
                           sequence.k_first + tile.key_first, sequence.k_batch);
  }

  // A block of Q with its log-sum-exps, or of dO with its deltas.
  __device__ void load_queries(typename Smem::QueryPipeline to, int landed, const TensorMap& map,
                               u32 all_stats, const float* stats, int head, int row,
                               const attn::Sequence& sequence) const {
    const QueryTile tile = to.tile(ring_.stage);
    const u32 stats_to = all_stats + ring_.stage * Smem::kStatBytes;
    const ptx::Mbarrier done =
        full<QueryTile>(to.full(ring_.stage), landed + ring_.stage, sequence.q_len - row);
    to.acquire(ring_);  // all have released it
    ptx::mbarrier_arrive_expect(done, QueryTile::kBytes + Smem::kStatBytes);
#pragma unroll
    for (int p = 0; p < QueryTile::kCount; ++p)
      ptx::tma_load_4d(tile.panel(p), map, done, p * QueryTile::kColumns, head,
                       sequence.q_first + row, sequence.q_batch);
    ptx::bulk_load(stats_to, stats, Smem::kStatBytes, done);
  }

  const TensorMaps& maps_;
  const BackwardKernelArgs& args_;
  Ring<Config::kStages> ring_;
  TileCount count_;
};

}  // namespace fa::sm90::backward
