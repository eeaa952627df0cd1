// SPDX-License-Identifier: Apache-2.0
// The slot Pages: where the keys of a sequence are. `Keys` loads blocks of a head of K, from the last one to
// the first, by one thread or by a warp. `ValueRows` finds the rows of V that are transposed.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/ptx/async.cuh>
#include <fa/sm90/fp8/args.cuh>
#include <fa/sm90/page_producer.cuh>

namespace fa::sm90::fp8::pages {

// The keys of a sequence are contiguous in their tensor.
struct Contiguous {
  static constexpr bool kByWarp = false;
  static constexpr int kArrivals = 1;      // that fill a stage of K
  static constexpr bool kGrouped = false;  // the panels of a tile follow each other
  template <int BlockKeys>
  static constexpr int kBoxKeys = BlockKeys;  // of a tensor map

  // The bytes of a block of K will arrive.
  static __device__ void expect(ptx::Mbarrier full, int bytes) {
    ptx::mbarrier_arrive_expect(full, bytes);
  }
  // A consumer has waited for a block of K.
  static __device__ void arrived() {}

  template <class Config>
  class Keys {
   public:
    __device__ Keys(const TensorMap& map, const Fp8KernelArgs&, const attn::Sequence& sequence,
                    int /*batch*/, int kv_head, int /*last_block*/)
        : map_(map), sequence_(sequence), kv_head_(kv_head) {}

    template <class KTile>
    __device__ void load(KTile to, ptx::Mbarrier full, int block) const {
#pragma unroll
      for (int p = 0; p < KTile::kCount; ++p)
        ptx::tma_load_4d(to.panel(p), map_, full, p * KTile::kRowBytes, kv_head_,
                         sequence_.k_first + block * Config::kBC, sequence_.k_batch);
    }

   private:
    const TensorMap& map_;
    const attn::Sequence& sequence_;
    const int kv_head_;
  };

  class ValueRows {
   public:
    __device__ ValueRows(const Fp8KernelArgs& args, const attn::Sequence& sequence, int /*batch*/,
                         int kv_head)
        : first_(static_cast<const char*>(args.v) + sequence.k_batch * args.v_stride.batch +
                 sequence.k_first * args.v_stride.seq + kv_head * args.v_stride.head),
          stride_(args.v_stride.seq) {}

    __device__ const char* row(int key) const { return first_ + key * stride_; }

   private:
    const char* const first_;
    const i64 stride_;
  };
};

// A paged KV cache: the keys of a sequence are in pages of `PageKeys` rows, which a block table lists. A
// page that does not exist has zeros.
template <int PageKeys>
struct PagedValues {
  static constexpr bool kByWarp = true;
  static constexpr bool kGrouped = false;  // the panels of a tile follow each other
  template <int BlockKeys>
  static constexpr int kBoxKeys = common_divisor(PageKeys, BlockKeys);  // of a tensor map

  class ValueRows {
   public:
    __device__ ValueRows(const Fp8KernelArgs& args, const attn::Sequence&, int batch, int kv_head)
        : first_(static_cast<const char*>(args.v) + kv_head * args.v_stride.head),
          table_(args.block_table + batch * args.block_table_stride),
          stride_(args.v_stride),
          pages_(args.pages) {}

    __device__ const char* row(int key) const {
      const int page = table_[key / PageKeys];
      if (page < 0 || page >= pages_) return nullptr;
      return first_ + page * stride_.batch + key % PageKeys * stride_.seq;
    }

   private:
    const char* const first_;
    const int* const table_;  // of the sequence
    const Strides& stride_;
    const int pages_;
  };
};

// What loads blocks of K from pages, by one warp. A lane reads the numbers of its pages a block ahead.
template <int PageKeys, class Config>
class PagedKeys {
  static_assert(Config::Lengths::kPerBatch, "pages say nothing of the number of keys");

 public:
  __device__ PagedKeys(const TensorMap& map, const Fp8KernelArgs& args,
                       const attn::Sequence& sequence, int batch, int kv_head, int last_block)
      : map_(map),
        args_(args),
        table_(args.block_table + batch * args.block_table_stride),
        k_len_(sequence.k_len),
        kv_head_(kv_head) {
    ahead_.read(last_block, 0, table_, k_len_);
  }

 protected:
  using Numbers = PageNumbers<PageKeys, Config::kBC, 1>;

  // The numbers of a block, whose predecessor is the next one.
  __device__ Numbers numbers(int block) {
    const Numbers found = ahead_;
    ahead_.read(block - 1, 0, table_, k_len_);
    return found;
  }

  const TensorMap& map_;
  const Fp8KernelArgs& args_;
  const int* const table_;  // of the sequence
  const int k_len_, kv_head_;
  Numbers ahead_;  // of the next block
};

// A lane loads boxes of K by TMA.
template <int PageKeys>
struct Paged : PagedValues<PageKeys> {
  static constexpr int kArrivals = 1;  // that fill a stage of K

  static __device__ void expect(ptx::Mbarrier full, int bytes) {
    if (lane_id() == 0) ptx::mbarrier_arrive_expect(full, bytes);
    __syncwarp();  // the barrier expects the bytes
  }
  static __device__ void arrived() {}

  template <class Config>
  class Keys : public PagedKeys<PageKeys, Config> {
    using Base = PagedKeys<PageKeys, Config>;
    using typename Base::Numbers;
    static_assert(Numbers::kBoxKeys % kGroupRows == 0, "boxes keep groups of swizzled rows whole");

   public:
    using Base::Base;

    template <class KTile>
    __device__ void load(KTile to, ptx::Mbarrier full, int block) {
      const Numbers numbers = this->numbers(block);
#pragma unroll
      for (int i = 0; i < Numbers::kPerLane; ++i)
        if (const int box = Numbers::box(i, 0); box < Numbers::kBoxes) {
          const int row = box * Numbers::kBoxKeys;
#pragma unroll
          for (int p = 0; p < KTile::kCount; ++p)
            ptx::tma_load_4d(to.panel(p) + row * KTile::kRowBytes, this->map_, full,
                             p * KTile::kRowBytes, this->kv_head_,
                             (block * Config::kBC + row) % PageKeys, numbers.number[i]);
        }
    }
  };
};

// A page and a block have fewer than eight keys in common: the lanes of a warp copy rows of K.
template <int PageKeys>
struct CopiedRows : PagedValues<PageKeys> {
  static constexpr int kArrivals = kWarpSize;  // that fill a stage of K

  static __device__ void expect(ptx::Mbarrier, int /*bytes*/) {}
  static __device__ void arrived() { ptx::fence_proxy_async(); }  // the products see the copies

  template <class Config>
  class Keys : public PagedKeys<PageKeys, Config> {
    using Base = PagedKeys<PageKeys, Config>;

   public:
    using Base::Base;

    template <class KTile>
    __device__ void load(KTile to, ptx::Mbarrier full, int block) {
      const Fp8KernelArgs& args = this->args_;
      copy_rows<PageKeys, 1>(to, full, this->numbers(block), 0,
                             {this->map_, args.k, args.k_stride, args.d_qk}, this->kv_head_,
                             block * Config::kBC, args.pages);
    }
  };
};

}  // namespace fa::sm90::fp8::pages
