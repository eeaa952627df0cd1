// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that goes through the tiles, posts each, and loads its K and V, and Q and dO
// of the blocks that visit it as buffers become empty.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
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
    ptx::wait_for_grid();  // also if no query saw a key
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
    // The buffers of the first tile are empty, and the kernel before does not write Q, K, V and dO.
    bool has_keys = count_.tiles == 0;
    if (has_keys) {
      load_keys(tile, sequence);
    } else {
      const int row = sequence.k_first + tile.key_first;
      prefetch<KeyTile>(maps_.k, tile.kv_head, row, sequence.k_batch);
      prefetch<KeyTile>(maps_.v, tile.kv_head, row, sequence.k_batch);
    }
    const Mailbox mail = Smem::mail(count_);
    const bool listed = Config::Function::kListed;
    const int first_place = listed ? 0 : range.first_block();
    const int end_place = listed ? mail.read_alone(Word::kEndBlock) : range.end_block();
    const int first = first_head(args_, tile.kv_head, tile.split);
    const auto entry_at = [&](int n) {
      return query_entry<Config>(BlockWalk<Config>::nth(n, first_place, end_place), mail, args_);
    };
    for (int head = first; head < first + num_heads(args_, tile.split); ++head) {
      const i64 stats = stat_row(args_, head, tile.batch);
      u32 next = listed && first_place < end_place ? entry_at(first_place) : 0;
      for (int block = first_place; block < end_place; ++block) {
        const u32 entry = listed ? ptx::word_here(next) : entry_at(block);
        if (listed && block + 1 < end_place) next = entry_at(block + 1);  // before it is needed
        const int row = query_block<Config>(entry) * Config::kBR;
        if (!waited_)
          prefetch<QueryTile>(maps_.d_o, head, sequence.q_first + row, sequence.q_batch);
        load_queries(Smem::q_pipeline(), Smem::kQLanded, maps_.q, Smem::kLse,
                     args_.lse_log2 + stats + row, head, row, sequence);
        load_queries(Smem::d_o_pipeline(), Smem::kDOLanded, maps_.d_o, Smem::kDelta,
                     args_.delta + stats + row, head, row, sequence);
        if constexpr (Config::Function::kBias) load_bias(tile, head, row);
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

  // Into L2, before the buffers are empty.
  template <class Tile>
  static __device__ void prefetch(const TensorMap& map, int head, int row, int batch) {
#pragma unroll
    for (int p = 0; p < Tile::kCount; ++p)
      ptx::tma_prefetch_4d(map, p * Tile::kColumns, head, row, batch);
  }

  // A block of Q with its log-sum-exps, or of dO with its deltas.
  __device__ void load_queries(typename Smem::QueryPipeline to, int landed, const TensorMap& map,
                               u32 all_stats, const float* stats, int head, int row,
                               const attn::Sequence& sequence) {
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
    if (!waited_) {
      ptx::wait_for_grid();  // the kernel before has stored the statistics
      waited_ = true;
    }
    ptx::bulk_load(stats_to, stats, Smem::kStatBytes, done);
  }

  // Of the queries from `row` on.
  __device__ void load_bias(Tile tile, int head, int row) {
    using BiasTile = typename Smem::BiasTile;
    const auto bias = Smem::bias_pipeline();
    const auto plane = Config::Function::plane(args_, tile.batch, head);
    bias.acquire(0, bias_parity_);  // all have released it
    bias_parity_ ^= 1;
    ptx::mbarrier_arrive_expect(bias.full(0), BiasTile::kBytes);
#pragma unroll
    for (int p = 0; p < BiasTile::kCount; ++p)
      ptx::tma_load_4d(Smem::bias().panel(p), *maps_.bias, bias.full(0),
                       tile.key_first + p * BiasTile::kColumns, row, plane.inner, plane.outer);
  }

  const TensorMaps& maps_;
  const BackwardKernelArgs& args_;
  Ring<Config::kStages> ring_;
  TileCount count_;
  bool waited_ = false;  // for the kernel before
  u32 bias_parity_ = 0;
};

// The clearer, where sequences differ in length: a warp that clears the rows of a buffer after the end of the
// sequence. They belong to another sequence, or to nobody. Products read them with factors of zero, and 0
// times NaN is NaN. The copies of such a buffer complete a barrier of the clearer, which then says that the
// buffer is full, so that the warpgroups that compute need not look at the ends of sequences.
template <class Config>
class Clearer {
  using Smem = SharedMemory<Config>;

 public:
  __device__ explicit Clearer(const BackwardKernelArgs& args) : args_(args) {}

  __device__ void run() {
    int steps, block;
    while (take_tile<Config>(tile_, steps, block)) {
      const Mailbox mail = Smem::mail(tile_);
      const int queries = mail.read(Word::kQLen);
      if (steps == 0) clear_keys(mail);
      for (int step = 0; step < steps; ++step) {
        clear_queries(queries - query_block<Config>(block, mail, args_) * Config::kBR);
        if (step == 0) clear_keys(mail);  // in the order of the loads
        ring_.advance();
        BlockWalk<Config>::next(block, mail);
      }
      while (ring_.stage > 0) ring_.advance();  // the next tile starts at stage 0
      __syncwarp();                             // all lanes have read the mailbox
      Smem::mail_pipeline().release(tile_.mailbox());
      tile_.advance();
    }
  }

 private:
  __device__ void clear_queries(int rows) {
    if (rows >= Config::kBR) return;
    const int stage = ring_.stage;
    clear(Smem::q(stage), rows, Smem::kQLanded + stage, Smem::q_pipeline().full(stage));
    clear(Smem::d_o(stage), rows, Smem::kDOLanded + stage, Smem::d_o_pipeline().full(stage));
  }
  __device__ void clear_keys(Mailbox mail) {
    const int rows = mail.read(Word::kKLen) - mail.read(Word::kKeyFirst);
    if (rows >= Config::kBC) return;
    clear(Smem::k(), rows, Smem::kKLanded, Smem::key_pipeline().full(0, Smem::kKPart));
    clear(Smem::v(), rows, Smem::kVLanded, Smem::key_pipeline().full(0, Smem::kVPart));
  }

  // Clears the rows of a tile after the first `rows` ones, which its copy has written.
  template <class Tile>
  __device__ void clear(Tile tile, int rows, int landed, ptx::Mbarrier full) {
    Smem::landed().wait(landed, parities_ >> landed & 1);  // the copy has arrived
    parities_ ^= 1u << landed;
    clear_rows(tile, rows, Tile::kRows, lane_id(), kWarpSize);
    __syncwarp();  // all lanes have stored their zeros
    if (lane_id() == 0) ptx::mbarrier_arrive(full);
  }

  const BackwardKernelArgs& args_;
  Ring<Config::kStages> ring_;
  TileCount tile_;
  u32 parities_ = 0;  // of the barriers that the copies complete
};

}  // namespace fa::sm90::backward
