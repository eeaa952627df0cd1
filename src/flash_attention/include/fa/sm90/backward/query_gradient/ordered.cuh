// SPDX-License-Identifier: Apache-2.0
// A third warpgroup computes dQ = dS K, and tiles add their shares in the order of their keys. dQ is the
// same in every run, and no other kernel clears or converts sums.
#pragma once
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/sum_writer.cuh>
#include <fa/sm90/backward/work.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90::backward::query_gradient {

struct Ordered {
  template <class Config, int Warpgroup>
  using KeySide = DsBuffers<Config, Warpgroup>;
  template <class Config>
  using Writer = SumWriter<Config>;

  template <class Config>
  class QueryWarpgroup {
    using Smem = SharedMemory<Config>;
    using Math = QueryProduct<Config>;
    using Sum = typename Math::Sum;
    using Rows = SharedTile<Math::kColumns, kWarpgroupRows>;      // of dQ in 16 bits
    static constexpr int kIndex = Shape<Config>::kKeyWarpgroups;  // after the key warpgroups

   public:
    __device__ QueryWarpgroup(const TensorMaps& maps, const BackwardKernelArgs& args)
        : maps_(maps), args_(args), bias_gradient_(maps, args) {}

    __device__ void run() {
      while (take_tile<Config>(tile_, steps_, block_)) {
        head_ = Smem::mail(tile_).read(Word::kHead);
        bias_gradient_.begin_tile(Smem::mail(tile_));
        clear_unseen();
        Smem::key_pipeline().wait(0, tile_.key_parity(), Smem::kKPart);  // K has arrived
#pragma unroll 1
        for (; steps_ > 0; --steps_) {
          Smem::ds_pipeline().wait(ds_);  // dS is written
          if (leads()) bias_gradient_.store(Smem::mail(tile_), ds_.stage, block_ * Config::kBR);
#pragma unroll 1
          for (int pass = 0; pass < Math::kPasses; ++pass) compute(pass);
          ds_.advance();
          parity_ ^= 1;
          if (BlockWalk<Config>::next(block_, Smem::mail(tile_))) {
            ++head_;
            bias_gradient_.next_head();
          }
        }
        __syncwarp();  // all lanes have read the mailbox, and the last product K
        Smem::key_pipeline().release(0);
        Smem::mail_pipeline().release(tile_.mailbox());
        tile_.advance();
      }
      if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the stores that read it
    }

   private:
    // Each pass has its own part of the staging buffer.
    __device__ void compute(int pass) {
      Sum sum;
      const u32 staged = Smem::kDq + pass * Math::kPassBytes;
      Math::issue(sum, Smem::ds(ds_.stage), Smem::k(), pass);
      // The part is released, also for the first block, and the last share finds the sum there.
      Smem::dq_pipeline().wait_empty(pass, parity_);
      ptx::wgmma_wait<0>();  // dQ is complete, dS and K were read
      if (pass == Math::kPasses - 1) {
        if (leads()) bias_gradient_.wait_read();  // the store of dS has read it
        Smem::ds_pipeline().release(ds_);
      }
      const int share = Smem::mail(tile_).read(Word::kShare);
      if (Share::is_last(share))
        finish(sum, pass, staged, Share::is_first(share));
      else
        Math::stage(sum, staged);
      sync_warpgroup(kIndex);  // everybody has written, or dQ has left
      if (leads()) ptx::mbarrier_arrive(Smem::dq_pipeline().full(pass));
    }

    // The last share: dQ is the sum of all of them.
    __device__ void finish(Sum& sum, int pass, u32 staged, bool alone) {
      if (!alone) {
        Math::add_staged(sum, staged);
        sync_warpgroup(kIndex);  // everybody has read
      }
      const int first = warp_in_group() * kWarpRows;
      const int row = block_ * Config::kBR + pass / Math::kColumnPasses * kWarpgroupRows + first;
      const int column = pass % Math::kColumnPasses * Math::kColumns;
      const Mailbox mail = Smem::mail(tile_);
      stage_rows<typename Config::DType>(sum, args_.softmax_scale, Rows(staged), first);
      store_staged<Config::Lengths::kPerBatch>(
          Rows(staged), first, mail.read(Word::kQLen) - row, *maps_.dq,
          {{args_.dq, args_.dq_stride, min(args_.d_qk - column, Math::kColumns), column},
           mail.read(Word::kQFirst) + row,
           head_,
           mail.read(Word::kQBatch)});
      if (lane_id() == 0) ptx::tma_wait_read();
    }

    // The queries before the first block that the first keys visit see no key.
    __device__ void clear_unseen() const {
      const Mailbox mail = Smem::mail(tile_);
      if (mail.read(Word::kKeyFirst) > 0) return;
      const int rows = min(mail.read(Word::kFirstBlock) * Config::kBR, mail.read(Word::kQLen));
      const int chunks = args_.d_qk / kChunkElements;
      for (int head = head_; head < head_ + mail.read(Word::kHeads); ++head) {
        const RowsOf to{{args_.dq, args_.dq_stride, args_.d_qk},
                        mail.read(Word::kQFirst),
                        head,
                        mail.read(Word::kQBatch)};
        for (int i = threadIdx.x % kWarpgroupSize; i < rows * chunks; i += kWarpgroupSize)
          ptx::st_global_16(to.address() + (i / chunks) * args_.dq_stride.seq * kElementBytes +
                                i % chunks * kChunkBytes,
                            {});
      }
    }

    static __device__ bool leads() { return threadIdx.x % kWarpgroupSize == 0; }

    const TensorMaps& maps_;
    const BackwardKernelArgs& args_;
    typename Config::BiasGradient::template Of<Config> bias_gradient_;
    Ring<Config::kDsStages> ds_;
    u32 parity_ = 0;
    TileCount tile_;
    int steps_, block_, head_;
  };
};

}  // namespace fa::sm90::backward::query_gradient
