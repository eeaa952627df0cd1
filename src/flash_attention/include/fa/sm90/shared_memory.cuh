// SPDX-License-Identifier: Apache-2.0
// The shared memory of a CTA with a producer: one Q per warpgroup, ring buffers of K and V, V in 16 bits if it
// is loaded in 8 and K is not converted, O's own buffer if it has one, a bias of each K if there is one, then the
// mbarriers, the mailbox for the next tile and a word of each warpgroup.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// The mailbox for the next tile, from `start` on: a pair of barriers, then 16 bytes of a tile, as many of its
// sequence, and what the kernel puts there.
struct Mail {
  static constexpr int kBarrierBytes = 2 * ptx::kMbarrierBytes;

  ptx::Mbarrier full, empty;
  u32 tile, sequence, shared, piece;

  __device__ explicit Mail(u32 start)
      : full{start},
        empty{start + ptx::kMbarrierBytes},
        tile((start + kBarrierBytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes),
        sequence(tile + kChunkBytes),
        shared(sequence + kChunkBytes),
        piece(shared + kChunkBytes) {}

  // Where a mailbox ends, without what the kernel puts there.
  static __device__ constexpr int end(int start) {
    return (start + kBarrierBytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes + 2 * kChunkBytes;
  }
};

template <class Config>
class SharedMemory {
  using QTile = typename Shape<Config>::QTile;
  static constexpr int kStages = Config::kStages;
  static constexpr int kConsumers = Config::kConsumers;

 public:
  using KVTile = typename Shape<Config>::KTile;   // as it is loaded
  using VTile = typename Shape<Config>::VTile;    // as products read it
  using QPipeline = Pipeline<QTile, kConsumers>;  // a buffer for each warpgroup
  using KVPipeline = Pipeline<KVTile, kStages>;
  using BiasTile = SharedTile<Config::kBC, Shape<Config>::kBR, 64>;  // of all warpgroups
  static constexpr int kBiasBytes = Config::Function::kBias ? BiasTile::kBytes : 0;  // of a stage
  static constexpr int kConvertedStages = 2;
  using ConvertedPipeline = Pipeline<VTile, kConvertedStages>;  // of V in 16 bits, if K has 8

 private:
  static constexpr int kK = QPipeline::kTileBytes;
  static constexpr int kV = kK + KVPipeline::kTileBytes;
  static constexpr int kConverted = kV + KVPipeline::kTileBytes;
  static constexpr int kO = kConverted + (kScores8Bit<Config> ? ConvertedPipeline::kTileBytes : 0);
  static constexpr int kBias = kO + (Config::Output::kOwnBuffer ? QPipeline::kTileBytes : 0);
  static constexpr int kQBarriers = kBias + kStages * kBiasBytes;
  static constexpr int kKBarriers = kQBarriers + QPipeline::kBarrierBytes;
  static constexpr int kVBarriers = kKBarriers + KVPipeline::kBarrierBytes;
  static constexpr int kConvertedBarriers = kVBarriers + KVPipeline::kBarrierBytes;
  static constexpr int kMail =
      kConvertedBarriers + (kScores8Bit<Config> ? ConvertedPipeline::kBarrierBytes : 0);

 public:
  static constexpr int kBytes = kQBarriers + Config::kBarrierBytes;
  static constexpr int kPieceBytes = Config::Splits::kOnDevice ? kChunkBytes : 0;
  static_assert(kConsumers * sizeof(u32) <= kChunkBytes);
  static_assert(Mail::end(kMail) + kChunkBytes + kPieceBytes <= kBytes);

  __device__ explicit SharedMemory(u32 base) : base_(base) {}

  __device__ u32 base() const { return base_; }
  __device__ QPipeline q_pipeline() const { return {base_, base_ + kQBarriers}; }
  __device__ KVPipeline k_pipeline() const { return {base_ + kK, base_ + kKBarriers}; }
  __device__ KVPipeline v_pipeline() const { return {base_ + kV, base_ + kVBarriers}; }
  // Wait until K, or V, is where products read it.
  __device__ void wait_k(const Ring<kStages>& at) const {
    k_pipeline().wait(at);
    Config::Pages::arrived();
  }
  __device__ void wait_v(const Ring<kStages>& at) const {
    v_pipeline().wait(at);
    Config::Pages::arrived();
  }
  __device__ QTile q(int warpgroup) const { return q_pipeline().tile(warpgroup); }
  __device__ KVTile k(int stage) const { return k_pipeline().tile(stage); }
  __device__ ConvertedPipeline converted_pipeline() const {
    return {base_ + kConverted, base_ + kConvertedBarriers};
  }
  // The buffer that products read V of a stage from, and the parity of its phase.
  static_assert(!kScores8Bit<Config> || kStages == kConvertedStages ||
                kStages == 2 * kConvertedStages);
  __device__ int v_buffer(int stage) const {
    return kScores8Bit<Config> ? stage % kConvertedStages : stage;
  }
  __device__ u32 v_parity(const Ring<kStages>& at) const {
    return kStages == kConvertedStages ? at.parity : at.stage / kConvertedStages;
  }
  __device__ VTile v(int stage) const {
    return VTile(base_ + (kScores8Bit<Config> ? kConverted : kV)).after(v_buffer(stage));
  }
  __device__ QTile own_o(int warpgroup) const { return QTile(base_ + kO).after(warpgroup); }
  __device__ BiasTile bias(int stage) const { return BiasTile(base_ + kBias).after(stage); }
  __device__ Mail mail() const { return Mail(base_ + kMail); }

  // Every warp of a consumer arrives once at an empty barrier. A buffer is full when the copy engine has
  // filled it, or all warps that convert.
  __device__ void init_barriers() const {
    constexpr int kLoaders = Config::Pages::template kWarps<Config>;
    constexpr bool kLoadsTiles = kConverters<Config> == 0 || kScores8Bit<Config>;
    constexpr int kFillers =
        kLoadsTiles ? Config::Pages::template kArrivals<Config> : kConverters<Config>;
    constexpr int kReaders = kConsumers * kWarpgroupWarps;
#pragma unroll
    for (int w = 0; w < kConsumers; ++w)
      q_pipeline().init(w, Config::kConvertQueries ? kConverters<Config> : 1, kWarpgroupWarps);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      k_pipeline().init_full(stage, kFillers);
      v_pipeline().init_full(stage, kFillers);
      k_pipeline().init_empty(stage, kReaders);
      v_pipeline().init_empty(stage, kScores8Bit<Config> ? kConverters<Config> : kReaders);
    }
#pragma unroll
    for (int stage = 0; kScores8Bit<Config> && stage < kConvertedStages; ++stage)
      converted_pipeline().init(stage, kConverters<Config>, kReaders);
    ptx::mbarrier_init(mail().full, 1);
    ptx::mbarrier_init(mail().empty, kReaders + kConverters<Config> + kLoaders - 1);
    ptx::fence_mbarrier_init();  // TMA sees them
  }

 private:
  const u32 base_;
};

// How the producer tells the consumers the next tile: four words in shared memory, four more for its
// sequence if sequences differ in length, and a pair of mbarriers for them.
inline constexpr Tile kNoMoreTiles = {-1, 0, 0, 0};

__device__ inline void write_words(u32 address, int x, int y, int z, int w) {
  ptx::st_shared_16(address, {static_cast<u32>(x), static_cast<u32>(y), static_cast<u32>(z),
                              static_cast<u32>(w)});
}

__device__ inline int of_first_lane(u32 word) {
  return static_cast<int>(__shfl_sync(~0u, word, 0));
}

// All lanes that call it wait, and the one that `leads` posts.
template <class Config>
__device__ void post_tile(Mail mail, const Tile& tile, const attn::Sequence& sequence, u32 parity,
                          bool leads = true) {
  ptx::mbarrier_wait(mail.empty, parity ^ 1);  // everybody has read the previous tile
  if (!leads) return;
  write_words(mail.tile, tile.q_block, tile.head, tile.batch, tile.split);
  // Of the keys, consumers need only their number.
  if (Config::Lengths::kPerBatch)
    write_words(mail.sequence, sequence.q_len, sequence.k_len, sequence.q_first, sequence.q_batch);
  if (Config::Splits::kOnDevice)
    write_words(mail.piece, tile.piece.first, tile.piece.end, tile.piece.first_team,
                tile.piece.end_team);
  ptx::mbarrier_arrive(mail.full);
}

// One thread posts all tiles of this CTA. load(tile) finds the tile's sequence and its parity.
template <class Config, class Load>
__device__ void post_tiles(Mail mail, const ForwardKernelArgs& args, attn::Sequence& sequence,
                           u32& parity, Load load) {
  typename Config::TileOrder::template Walk<Config> walk(args);
  Tile tile;
  for (bool more = walk.next(tile); more; more = walk.next(tile)) {
    sequence = Config::Lengths::sequence(args, tile.batch);
    post_tile<Config>(mail, tile, sequence, parity);
    walk.request();
    load(tile);
    parity ^= 1;
  }
  post_tile<Config>(mail, kNoMoreTiles, sequence, parity);
  walk.finish();
}

template <class Config>
__device__ attn::Sequence read_sequence(Mail mail, const ForwardKernelArgs& args, int batch) {
  if constexpr (!Config::Lengths::kPerBatch) {
    return Config::Lengths::sequence(args, batch);
  } else {
    ptx::Chunk words = {};
    if (lane_id() == 0) words = ptx::ld_shared_16(mail.sequence);
    return {of_first_lane(words.x), of_first_lane(words.y),
            of_first_lane(words.z), 0,
            of_first_lane(words.w), 0};
  }
}

__device__ inline Piece read_piece(Mail mail) {
  ptx::Chunk words = {};
  if (lane_id() == 0) words = ptx::ld_shared_16(mail.piece);
  return {of_first_lane(words.x), of_first_lane(words.y), of_first_lane(words.z),
          of_first_lane(words.w)};
}

// Called by every warp; false after the last tile.
template <class Config>
__device__ bool take_tile(Mail mail, const ForwardKernelArgs& args, Tile& tile,
                          attn::Sequence& sequence, u32 parity) {
  ptx::mbarrier_wait(mail.full, parity);  // the next tile is in the mailbox
  // Only the lane that releases the mailbox reads it, so no other lane has to be waited for.
  ptx::Chunk words = {};
  if (lane_id() == 0) words = ptx::ld_shared_16(mail.tile);
  tile = {of_first_lane(words.x), of_first_lane(words.y), of_first_lane(words.z),
          Config::Splits::kSplitKv ? of_first_lane(words.w) : 0};
  sequence = read_sequence<Config>(mail, args, tile.batch);
  if constexpr (Config::Splits::kOnDevice) tile.piece = read_piece(mail);
  if (lane_id() == 0) ptx::mbarrier_arrive(mail.empty);
  return tile.q_block >= 0;
}

// Clears the rows from `first` on of a shared tile, with `Threads` threads including this one. Products read
// them although nothing was loaded there, and 0 times NaN is NaN.
template <int Threads, class Tile>
__device__ void clear_rows(Tile tile, int first, int thread) {
  constexpr int kRowChunks = Tile::kCount * Tile::kRowBytes / kChunkBytes;
  for (int i = first * kRowChunks + thread; i < Tile::kRows * kRowChunks; i += Threads)
    ptx::st_shared_16(tile.chunk(i / kRowChunks, i % kRowChunks), {0, 0, 0, 0});
  ptx::fence_proxy_async();  // the products see the zeros
}

// Clears rows of Q that no load fills, with the threads of their warpgroup.
template <class Config>
__device__ void clear_queries(typename Shape<Config>::QTile tile, int warpgroup) {
  clear_rows<kWarpgroupSize>(tile, Shape<Config>::kRows, threadIdx.x % kWarpgroupSize);
  sync_warpgroup(warpgroup);  // all four warps have stored their zeros
}

// Clears the rows of a block of V from `keys` on, with all consumers.
template <class Config>
__device__ void clear_keys(typename Shape<Config>::VTile tile, int keys) {
  clear_rows<Config::kConsumers * kWarpgroupSize>(tile, keys, threadIdx.x - kWarpgroupSize);
  sync_consumers<Config>();  // all consumers have stored their zeros
}

}  // namespace fa::sm90
