// SPDX-License-Identifier: Apache-2.0
// All threads copy 16-byte chunks by cp.async, and zeros beyond the sequence. O is stored from
// registers in pairs of elements.
#pragma once
#include <fa/ptx/cp_async.cuh>
#include <fa/ptx/mbarrier.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/warp_output.cuh>

namespace fa::sm90::copy {

struct CpAsync {
  template <class Config>
  class Transfers {
    using QTile = typename Shape<Config>::QTile;
    using KVTile = typename Shape<Config>::KVTile;
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

}  // namespace fa::sm90::copy
