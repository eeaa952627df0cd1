// SPDX-License-Identifier: Apache-2.0
// The producer goes through the tiles, tells the consumers about each, and loads Q, K and V into shared
// memory as buffers become empty. One thread does so, unless the slot Pages has another producer.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/tile_order.cuh>

namespace fa::sm90 {

// What every producer has: how it goes through the tiles, and how it loads Q. One thread leads; if the order
// of the tiles takes a warp, or the producer has several, the other lanes follow it.
template <class Config, class Memory>
class LeadingProducer {
  using QTile = typename Shape<Config>::QTile;

 public:
  __device__ LeadingProducer(const Memory& smem, const TensorMaps& maps,
                             const ForwardKernelArgs& args)
      : smem_(smem), maps_(maps), args_(args) {}

  // The rows of Q wait in L2 until their buffer is empty.
  __device__ void prefetch_q(Tile tile) const {
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w)
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_prefetch_4d(maps_.q, p * QTile::kColumns, tile.head * Config::Rows::kGroup,
                             q_row(tile, w), sequence_.q_batch);
  }

 protected:
  // `loader` loads every tile, and meanwhile takes the next one.
  template <bool ByWarp, class Loader>
  __device__ void lead(Loader& loader) {
    const auto leads = [] { return !ByWarp || lane_id() == 0; };
    if (leads()) prefetch_maps();
    typename Config::TileOrder::template Walk<Config> walk(args_);
    Tile tile = {}, next = {};
    for (bool more = next_tile<Config, ByWarp>(walk, tile); more; tile = next) {
      sequence_ = Config::Lengths::sequence(args_, tile.batch);
      if (leads()) Config::Queries::expect(*this, tile);
      post_tile<Config>(smem_.mail(), tile, sequence_, tile_parity_, leads());
      if (leads()) walk.request();
      loader.load(tile, [&] { more = next_tile<Config, ByWarp>(walk, next); });
    }
    post_tile<Config>(smem_.mail(), kNoMoreTiles, sequence_, tile_parity_, leads());
    if (leads()) walk.finish();
  }

  __device__ void prefetch_maps() const {
    ptx::tma_prefetch_map(maps_.q);
    ptx::tma_prefetch_map(maps_.k);
    ptx::tma_prefetch_map(maps_.v);
    ptx::tma_prefetch_map(maps_.o);
    if constexpr (Config::Function::kBias) ptx::tma_prefetch_map(bias_map());
  }
  __device__ const TensorMap& bias_map() const {
    return static_cast<const BiasedMaps&>(maps_).bias;
  }

  // All lanes that call it wait, and the one that `leads` loads.
  __device__ void load_q(Tile tile, bool leads = true) {
    if (Config::kConvertQueries) return;
#pragma unroll
    for (int w = 0; w < Config::kConsumers; ++w) {
      smem_.q_pipeline().acquire(w, tile_parity_);  // the previous Q was read
      if (!leads) continue;
      const ptx::Mbarrier full = smem_.q_pipeline().full(w);
      ptx::mbarrier_arrive_expect(full, Shape<Config>::kQLoadBytes);
#pragma unroll
      for (int p = 0; p < QTile::kCount; ++p)
        ptx::tma_load_4d(smem_.q(w).panel(p), maps_.q, full, p * QTile::kColumns,
                         tile.head * Config::Rows::kGroup, q_row(tile, w), sequence_.q_batch);
    }
  }

  const Memory& smem_;
  const TensorMaps& maps_;
  const ForwardKernelArgs& args_;
  attn::Sequence sequence_ = {};
  int kv_head_ = 0;  // of the tile; a division per block would delay the copies
  Ring<Config::kStages> ring_;
  u32 tile_parity_ = 0;

 private:
  __device__ int q_row(Tile tile, int warpgroup) const {
    const int row = tile.q_block * Shape<Config>::kBR + warpgroup * Shape<Config>::kRows;
    return sequence_.q_first + Config::Rows::position(row);
  }
};

template <class T, class KVTile>
concept LoadsBlocks =
    requires(KVTile tile, const TensorMap& map, ptx::Mbarrier full, const attn::Sequence& sequence,
             const ForwardKernelArgs& args) { T::load(tile, map, full, 0, 0, 0, sequence, args); };

template <class Config, class Memory>
class Producer : public LeadingProducer<Config, Memory> {
  using Base = LeadingProducer<Config, Memory>;
  using KVTile = typename Memory::KVTile;
  static_assert(LoadsBlocks<typename Config::Pages, KVTile>,
                "Pages: load(tile, map, full, kv_head, key, batch, sequence, args)");

 public:
  static constexpr bool kByWarp = Config::TileOrder::kByWarp;
  static constexpr int kThreads = kByWarp ? kWarpSize : 1;
  using Base::Base;

  __device__ void run() { this->template lead<kByWarp>(*this); }

  // `meanwhile` runs once, after the load of the first block was issued.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    auto range = key_range<Config>(tile, sequence_, args_);
    const auto [first, end] = blocks_of<Config>(range, tile, args_);
    int place = end - 1;
    int block = place >= first ? range.key_block(place) : 0;
    kv_head_ = kv_head<Config>(tile, args_);
    if (place >= first) load_k(tile, block);
    this->load_q(tile, leads());
    if (place >= first) load_v(tile, block);
    meanwhile();
    range.read_ahead(place - 1, first);
    while (--place >= first) {
      block = range.next_block(place);
      range.read_ahead(place - 1, first);
      load_k(tile, block);
      load_v(tile, block);
    }
    tile_parity_ ^= 1;
  }

 private:
  static __device__ bool leads() { return !kByWarp || lane_id() == 0; }

  __device__ void load_k(Tile tile, int block) {
    if constexpr (Config::Function::kBias) {
      load_keys(smem_.k_pipeline(), maps_.k, tile, block, Memory::kBiasBytes);
      if (leads()) Config::Bias::load(smem_, this->bias_map(), ring_.stage, tile, block, args_);
    } else {
      load_keys(smem_.k_pipeline(), maps_.k, tile, block);
    }
  }

  __device__ void load_v(Tile tile, int block) {
    load_keys(smem_.v_pipeline(), maps_.v, tile, block);
    ring_.advance();
  }

  __device__ void load_keys(typename Memory::KVPipeline to, const TensorMap& map, Tile tile,
                            int block, int more_bytes = 0) {
    to.acquire(ring_);  // all have released the stage
    if (!leads()) return;
    const KVTile buffer = to.tile(ring_.stage);
    const ptx::Mbarrier full = to.full(ring_.stage);
    ptx::mbarrier_arrive_expect(full, KVTile::kBytes + more_bytes);
    Config::Pages::load(buffer, map, full, kv_head_, block * Config::kBC, tile.batch, sequence_,
                        args_);
  }

  using Base::args_, Base::kv_head_, Base::maps_, Base::ring_, Base::sequence_, Base::smem_;
  using Base::tile_parity_;
};

template <class T, class Config>
concept PagesSlot = requires {
  { T::template kBoxKeys<Config::kBC> } -> Same<const int&>;
  { T::template kWarps<Config> } -> Same<const int&>;
  { T::template kArrivals<Config> } -> Same<const int&>;
  T::arrived();
  { T::kGrouped } -> Same<const bool&>;
  { T::kCopies } -> Same<const bool&>;
  typename T::template Producer<Config, SharedMemory<Config>>;
};

template <class T, class Config>
concept QueriesSlot = requires(const LeadingProducer<Config, SharedMemory<Config>>& producer,
                               Tile tile) { T::expect(producer, tile); };

// How many of the warps that load share the boxes of K, and as many those of V. One warp loads both.
__device__ constexpr int sharers(int warps) { return warps > 1 ? warps / 2 : 1; }

// The bytes of an element of K or V as it is loaded.
template <class Config>
inline constexpr int kElementBytesOf = Config::kConvertingWarps ? 1 : kElementBytes;

// One thread loads whole blocks, or pages one after the other.
struct OneProducer {
  static constexpr bool kCopies = false;   // TMA loads
  static constexpr bool kGrouped = false;  // the panels of a tile follow each other
  template <class Config>
  static constexpr int kWarps = 1;  // that load
  template <class Config>
  static constexpr int kArrivals = 1;  // that fill a stage
  // A consumer has waited for a stage.
  static __device__ void arrived() {}
  template <class Config, class Memory>
  using Producer = sm90::Producer<Config, Memory>;
};

}  // namespace fa::sm90

namespace fa::sm90::pages {

// The keys of a sequence are contiguous in their tensor.
struct Contiguous : OneProducer {
  template <int BlockKeys>
  static constexpr int kBoxKeys = BlockKeys;  // of a tensor map

  template <class KVTile>
  static __device__ void load(KVTile tile, const TensorMap& map, ptx::Mbarrier full, int kv_head,
                              int key, int /*batch*/, const attn::Sequence& sequence,
                              const ForwardKernelArgs&, int first_column = 0) {
#pragma unroll
    for (int p = 0; p < KVTile::kCount; ++p)
      ptx::tma_load_4d(tile.panel(p), map, full, first_column + p * KVTile::kColumns, kv_head,
                       sequence.k_first + key, sequence.k_batch);
  }
};

}  // namespace fa::sm90::pages

namespace fa::sm90::queries {

// Q is not prefetched: it is loaded when its buffer is empty.
struct OnDemand {
  template <class Producer>
  static __device__ void expect(const Producer&, Tile) {}
};

// Q is prefetched into L2 as soon as its tile is known, while the previous tile is computed.
struct Prefetched {
  template <class Producer>
  static __device__ void expect(const Producer& producer, Tile tile) {
    producer.prefetch_q(tile);
  }
};

}  // namespace fa::sm90::queries
