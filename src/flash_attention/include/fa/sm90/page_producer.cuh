// SPDX-License-Identifier: Apache-2.0
// The producer of a paged KV cache: whole warps, because many small boxes make a block of keys. Every lane
// has a box, reads the number of its page a block ahead, and loads it. Where no warp has to convert, two
// warps share the boxes of K and two those of V. Boxes of a few keys are copied by all lanes of a warp.
#pragma once
#include <fa/sm90/page_numbers.cuh>
#include <fa/sm90/producer.cuh>
#include <fa/sm90/row_copies.cuh>

namespace fa::sm90 {

// The list of a tile, if tiles have lists.
template <class Config, bool Listed = Config::Function::kListed>
struct TileList {};
template <class Config>
struct TileList<Config, true> {
  decltype(key_range<Config>(Tile{}, attn::Sequence{}, ForwardKernelArgs{})) keys;
};

template <class Config, class Memory, class Pages>
class PageProducer : public LeadingProducer<Config, Memory>, TileList<Config> {
  using Base = LeadingProducer<Config, Memory>;
  using KVTile = typename Memory::KVTile;
  static constexpr int kWarps = Pages::template kWarps<Config>;
  static constexpr int kSharers = sharers(kWarps);  // of the boxes of a block
  using Numbers = PageNumbers<Pages::kPageKeys, Config::kBC, kSharers>;
  static_assert(Config::Lengths::kPerBatch, "pages say nothing of the number of keys");

 public:
  static constexpr int kThreads = kWarps * kWarpSize;
  using Base::Base;

  __device__ void run() {
    if (warp_id() == 0)
      this->template lead<true>(*this);
    else
      follow();
  }

  // `meanwhile` runs once, after the load of the first block was issued.
  template <class Work>
  __device__ void load(Tile tile, Work meanwhile) {
    const auto [first, end] = visited_blocks<Config>(tile, sequence_, args_);
    table_ = args_.block_table + tile.batch * args_.block_table_stride;
    if constexpr (Config::Function::kListed) this->keys = key_range<Config>(tile, sequence_, args_);
    const int head = kv_head<Config>(tile, args_);
    k_head_ = Pages::template head_at<KVTile>(head, args_.k_stride.head);
    v_head_ = Pages::template head_at<KVTile>(head, args_.v_stride.head);
    if constexpr (Config::Function::kListed)
      read_listed(end - 1);
    else
      ahead_.read(end - 1, sharer(), table_, sequence_.k_len);
    int block = end - 1;  // or its place in a list
    // V is needed later than K, so one of its warps waits for Q's buffer.
    if (kWarps > 1 && warp_id() == 1) this->load_q(tile, leads());
    if (block >= first) load_k(block);
    if (kWarps == 1) this->load_q(tile, leads());
    if (block >= first) load_v(block);
    meanwhile();
    while (--block >= first) {
      load_k(block);
      load_v(block);
    }
    tile_parity_ ^= 1;
  }

 private:
  // The other warps learn of the tiles as the consumers do.
  __device__ void follow() {
    Tile tile;
    while (take_tile<Config>(smem_.mail(), args_, tile, sequence_, tile_parity_)) load(tile, [] {});
  }

  __device__ void load_k(int block) {
    numbers_ = ahead_;
    if constexpr (Config::Function::kListed)
      read_listed(block - 1);
    else
      ahead_.read(block - 1, sharer(), table_, sequence_.k_len);
    if (kWarps == 1 || warp_id() % 2 == 0)
      load_keys(smem_.k_pipeline(), {maps_.k, args_.k, args_.k_stride, args_.d_qk}, k_head_, block);
  }

  __device__ void load_v(int block) {
    if (kWarps == 1 || warp_id() % 2 == 1)
      load_keys(smem_.v_pipeline(), {maps_.v, args_.v, args_.v_stride, args_.d_v}, v_head_, block);
    ring_.advance();
  }

  __device__ void read_listed(int place) {
    if (place >= 0) ahead_.read(this->keys.key_block(place), sharer(), table_, sequence_.k_len);
  }

  // The warp's boxes of a block.
  __device__ void load_keys(typename Memory::KVPipeline to, const KvCache& cache, int head,
                            int block) {
    if constexpr (Config::Function::kListed) block = this->keys.key_block(block);
    to.acquire(ring_);  // all have released the stage
    Pages::template load<kElementBytesOf<Config>>(to.tile(ring_.stage), to.full(ring_.stage),
                                                  numbers_, sharer(), cache, head,
                                                  block * Config::kBC, args_.pages);
  }

  static __device__ bool leads() { return lane_id() == 0; }
  static __device__ int sharer() { return kSharers == 1 ? 0 : warp_id() / 2; }

  using Base::args_, Base::maps_, Base::ring_, Base::sequence_, Base::smem_;
  using Base::tile_parity_;
  const int* table_;         // of the sequence
  int k_head_, v_head_;      // where the tile's head is in the tensor maps
  Numbers numbers_, ahead_;  // of the block that is loaded, and of the next one
};

// A paged KV cache: the keys of a sequence are in pages of `PageKeys` rows, which a block table lists.
template <int PageKeys>
struct ByWarps {
  static constexpr int kPageKeys = PageKeys;
  template <int BlockKeys>
  static constexpr int kBoxKeys = common_divisor(PageKeys, BlockKeys);  // of a tensor map
};

// TMA loads the boxes: `Pages` says where to.
template <int PageKeys, class Pages>
struct ByBoxes : ByWarps<PageKeys> {
  static constexpr bool kCopies = false;
  template <class Config, class Memory>
  using Producer = PageProducer<Config, Memory, Pages>;
  // Where keys are converted, the other warps of the producer's warpgroup do that.
  template <class Config>
  static constexpr int kWarps = Config::kConvertingWarps ? 1 : kWarpgroupWarps;
  template <class Config>
  static constexpr int kArrivals = sharers(kWarps<Config>);

  static __device__ void arrived() {}

  template <int ElementBytes, class KVTile, class Numbers>
  static __device__ void load(KVTile tile, ptx::Mbarrier full, const Numbers& numbers, int sharer,
                              const KvCache& cache, int head, int first_key, int /*pages*/) {
    constexpr int kBoxBytes = KVTile::kBytes / Numbers::kBoxes;
    if (lane_id() == 0) ptx::mbarrier_arrive_expect(full, Numbers::count(sharer) * kBoxBytes);
    __syncwarp();  // the barrier expects the bytes
#pragma unroll
    for (int i = 0; i < Numbers::kPerLane; ++i)
      if (const int box = Numbers::box(i, sharer); box < Numbers::kBoxes) {
        const int row = box * Numbers::kBoxKeys;
        Pages::load_box(tile, row, cache.map, full, head, (first_key + row) % PageKeys,
                        numbers.number[i]);
      }
  }
};

}  // namespace fa::sm90

namespace fa::sm90::pages {

// A box has the keys that a page and a block have in common, and the columns of a panel.
template <int PageKeys>
struct PanelBoxes : ByBoxes<PageKeys, PanelBoxes<PageKeys>> {
  static constexpr bool kGrouped = false;

  template <class KVTile>
  static __device__ int head_at(int kv_head, i64 /*stride*/) {
    return kv_head;
  }

  template <class KVTile>
  static __device__ void load_box(KVTile tile, int row, const TensorMap& map, ptx::Mbarrier full,
                                  int head, int key, int page) {
    static_assert(
        ByWarps<PageKeys>::template kBoxKeys<KVTile::kRows> * KVTile::kRowBytes % 128 == 0,
        "TMA writes to multiples of 128 bytes");
#pragma unroll
    for (int p = 0; p < KVTile::kCount; ++p)
      ptx::tma_load_4d(tile.panel(p) + row * KVTile::kRowBytes, map, full, p * KVTile::kColumns,
                       head, key, page);
  }
};

// A box has whole rows: groups of eight keys, each with all panels.
template <int PageKeys>
struct GroupBoxes : ByBoxes<PageKeys, GroupBoxes<PageKeys>> {
  static constexpr bool kGrouped = true;

  // The panels of all heads are one dimension of the tensor map.
  template <class KVTile>
  static __device__ int head_at(int kv_head, i64 stride) {
    return static_cast<int>(kv_head * (stride / KVTile::kColumns));
  }

  template <class KVTile>
  static __device__ void load_box(KVTile tile, int row, const TensorMap& map, ptx::Mbarrier full,
                                  int head, int key, int page) {
    ptx::tma_load_5d(tile.group(row / kGroupRows), map, full, 0, 0, head, key / kGroupRows, page);
  }
};

// A page and a block have fewer than eight keys in common: the lanes of a warp copy rows.
template <int PageKeys>
struct CopiedRows : ByWarps<PageKeys> {
  static constexpr bool kGrouped = false;
  static constexpr bool kCopies = true;
  template <class Config, class Memory>
  using Producer = PageProducer<Config, Memory, CopiedRows>;
  // Where keys are converted, half of the warps do that.
  template <class Config>
  static constexpr int kWarps = Config::kConvertingWarps ? 2 : kWarpgroupWarps;
  template <class Config>
  static constexpr int kArrivals = sharers(kWarps<Config>) * kWarpSize;  // every lane arrives

  static __device__ void arrived() { ptx::fence_proxy_async(); }  // the products see the copies

  template <class KVTile>
  static __device__ int head_at(int kv_head, i64 /*stride*/) {
    return kv_head;
  }

  template <int ElementBytes, class KVTile, class Numbers>
  static __device__ void load(KVTile tile, ptx::Mbarrier full, const Numbers& numbers, int sharer,
                              const KvCache& cache, int head, int first_key, int pages) {
    copy_rows<PageKeys, ElementBytes>(tile, full, numbers, sharer, cache, head, first_key, pages);
  }
};

}  // namespace fa::sm90::pages
