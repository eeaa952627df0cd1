// SPDX-License-Identifier: Apache-2.0
// The slot Copy of kernels without a producer: how tiles are loaded and O is stored.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90 {

template <class T, class Config>
concept CopySlot =
    requires(typename T::template Transfers<Config>& transfers, const WarpOutput<Config>& warp,
             typename Shape<Config>::QTile q_tile, typename Shape<Config>::VTile kv_tile, int row) {
      transfers.load_q(q_tile, row);
      transfers.load_k(kv_tile, row);
      transfers.load_v(kv_tile, row);
      transfers.load_nothing();
      transfers.wait_k();
      transfers.wait_v();
      transfers.store(warp, q_tile);
    };

}  // namespace fa::sm90

namespace fa::sm90::copy {

// All threads copy 16-byte chunks by cp.async, and zeros beyond the sequence. O is stored from
// registers in pairs of elements.
struct CpAsync {
  template <class Config>
  class Transfers {
    using QTile = typename Shape<Config>::QTile;
    using KVTile = typename Shape<Config>::VTile;
    static constexpr int kThreads = Config::kConsumers * kWarpgroupSize;
    static constexpr int kRowChunks = Config::kDHead / kChunkElements;

   public:
    template <class Maps>
    __device__ Transfers(const Maps&, const ForwardKernelArgs& args, Tile tile,
                         ptx::Mbarrier /*first of two*/)
        : args_(args), tile_(tile) {}

    __device__ void load_q(QTile to, int first_row) {
#pragma unroll
      for (int w = 0; w < Config::kConsumers; ++w)
        load(to.after(w), args_.q, args_.q_stride, tile_.head, first_row + w * kWarpgroupRows,
             args_.seq_len_q);
      ptx::cp_async_commit();
    }
    __device__ void load_k(KVTile to, int first_row) {
      load(to, args_.k, args_.k_stride, tile_.head / args_.heads_per_kv, first_row,
           args_.seq_len_k);
      ptx::cp_async_commit();
    }
    __device__ void load_v(KVTile to, int first_row) {
      load(to, args_.v, args_.v_stride, tile_.head / args_.heads_per_kv, first_row,
           args_.seq_len_k);
      ptx::cp_async_commit();
    }
    __device__ void load_nothing() { ptx::cp_async_commit(); }

    __device__ void wait_k() { wait<0>(); }
    __device__ void wait_v() { wait<1>(); }  // the next K may still be loading

    __device__ void store(const WarpOutput<Config>& warp, QTile /*staged*/) const {
      char* const head = address(args_.o, args_.o_stride, tile_.head);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = warp.lane_row(h);
        if (!warp.used(r)) continue;
        char* const to =
            head + (warp.position(r) * args_.o_stride.seq + 2 * (lane_id() % 4)) * kElementBytes;
#pragma unroll
        for (int j = 0; j < Config::kDHead / 8; ++j)
          ptx::st_global_4(to + j * kChunkBytes,
                           Config::DType::pack(warp.o.v[0][j][2 * h], warp.o.v[0][j][2 * h + 1]));
      }
    }

   private:
    __device__ char* address(const void* tensor, const Strides& stride, int head) const {
      return static_cast<char*>(const_cast<void*>(tensor)) +
             (tile_.batch * stride.batch + head * stride.head) * kElementBytes;
    }

    template <class AnyTile>
    __device__ void load(AnyTile to, const void* tensor, const Strides& stride, int head,
                         int first_row, int seq_len) {
      const char* const base = address(tensor, stride, head);
#pragma unroll 4
      for (int i = threadIdx.x; i < AnyTile::kRows * kRowChunks; i += kThreads) {
        const int row = i / kRowChunks, chunk = i % kRowChunks;
        const bool inside = first_row + row < seq_len;
        const i64 offset = inside ? (first_row + row) * stride.seq : 0;
        ptx::cp_async_16_or_zero(to.chunk(row, chunk),
                                 base + offset * kElementBytes + chunk * kChunkBytes, inside);
      }
    }

    template <int Pending>
    __device__ void wait() {
      ptx::cp_async_wait<Pending>();  // this thread's copies have arrived
      ptx::fence_proxy_async();       // wgmma sees them
      __syncthreads();                // and those of the other threads
    }

    const ForwardKernelArgs& args_;
    const Tile tile_;
  };
};

// One thread loads whole boxes by TMA; an mbarrier completes when they have arrived. O is stored as
// boxes too, staged in Q's buffer.
struct Tma {
  template <class Config>
  class Transfers {
    using QTile = typename Shape<Config>::QTile;
    using KVTile = typename Shape<Config>::VTile;

   public:
    template <class Maps>
    __device__ Transfers(const Maps& maps, const ForwardKernelArgs& args, Tile tile,
                         ptx::Mbarrier barriers)
        : q_map_(maps.q),
          k_map_(maps.k),
          v_map_(maps.v),
          o_map_(maps.o),
          tile_(tile),
          kv_head_(tile.head / args.heads_per_kv),
          k_full_(barriers),
          v_full_{barriers.address + ptx::kMbarrierBytes} {
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(k_full_, 1);
        ptx::mbarrier_init(v_full_, 1);
        ptx::fence_mbarrier_init();  // TMA sees them
      }
      __syncthreads();  // the barriers are ready
    }

    // Q shares the barrier of the first K: its bytes are added, without another arrival.
    __device__ void load_q(QTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(k_full_, Config::kConsumers * QTile::kBytes);
#pragma unroll
      for (int w = 0; w < Config::kConsumers; ++w)
        load(to.after(w), q_map_, k_full_, tile_.head, first_row + w * kWarpgroupRows);
    }
    __device__ void load_k(KVTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_arrive_expect(k_full_, KVTile::kBytes);
      load(to, k_map_, k_full_, kv_head_, first_row);
    }
    __device__ void load_v(KVTile to, int first_row) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_arrive_expect(v_full_, KVTile::kBytes);
      load(to, v_map_, v_full_, kv_head_, first_row);
    }
    __device__ void load_nothing() {}

    __device__ void wait_k() {
      ptx::mbarrier_wait(k_full_, k_parity_);  // K has arrived, and Q with the first K
      k_parity_ ^= 1;
    }
    __device__ void wait_v() {
      ptx::mbarrier_wait(v_full_, v_parity_);  // V has arrived
      v_parity_ ^= 1;
    }

    __device__ void store(const WarpOutput<Config>& warp, QTile staged) const {
      stage_and_store(warp, staged, o_map_);
      if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
    }

   private:
    template <class AnyTile>
    __device__ void load(AnyTile to, const TensorMap& map, ptx::Mbarrier full, int head,
                         int row) const {
#pragma unroll
      for (int p = 0; p < AnyTile::kCount; ++p)
        ptx::tma_load_4d(to.panel(p), map, full, p * AnyTile::kColumns, head, row, tile_.batch);
    }

    const TensorMap &q_map_, &k_map_, &v_map_, &o_map_;
    const Tile tile_;
    const int kv_head_;
    const ptx::Mbarrier k_full_, v_full_;
    u32 k_parity_ = 0, v_parity_ = 0;
  };
};

}  // namespace fa::sm90::copy
