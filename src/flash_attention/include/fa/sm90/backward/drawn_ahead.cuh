// SPDX-License-Identifier: Apache-2.0
// Warps beside the producer draw which weights are dropped, a block ahead of the key warpgroups.
#pragma once
#include <fa/sm90/backward/dropping.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/decisions.cuh>

namespace fa::sm90::backward {

template <class Config>
using BlockDecisions = Decisions<DroppedOfBlock<Config>, Shape<Config>::kKeyWarpgroups>;

template <class Config>
__device__ BlockDecisions<Config> decisions() {
  return BlockDecisions<Config>(SharedMemory<Config>::kDecisions);
}

template <class Config>
class Drawer {
  using Smem = SharedMemory<Config>;
  static constexpr int kTogether = 2;  // calls, since the producer's threads have few registers

 public:
  __device__ Drawer(const BackwardKernelArgs& args, int drawer)
      : args_(args), dropout_(args), turns_(drawer) {}

  __device__ void run() {
    int steps, block;
    while (take_tile<Config>(tile_, steps, block)) {
      const Mailbox mail = Smem::mail(tile_);
      dropout_.begin_head(first_head_of_all(mail, args_));
      const int first_key = mail.read(Word::kKeyFirst);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const int query = query_block<Config>(block, mail, args_) * Config::kBR;
        turns_.template next_block<DroppedOfBlock<Config>>(
            decisions<Config>(), [&](DroppedOfBlock<Config>& dropped, int reader) {
              dropout_.template draw<kTogether>(dropped, first_key + reader * kWarpRows, query,
                                                args_);
            });
        if (BlockWalk<Config>::next(block, mail)) dropout_.next_head();
      }
      __syncwarp();  // all lanes have read the mailbox
      Smem::mail_pipeline().release(tile_.mailbox());
      tile_.advance();
    }
  }

 private:
  const BackwardKernelArgs& args_;
  typename Config::Dropout dropout_;
  DrawingTurns<BlockDecisions<Config>, Smem::kDrawers> turns_;
  TileCount tile_;
};

// What a warp of a key warpgroup does instead of drawing.
template <class Config>
class ReadDraws {
 public:
  __device__ explicit ReadDraws(const BackwardKernelArgs&) {}
  __device__ void begin_tile(Mailbox) {}
  __device__ void next_head() {}

 protected:
  __device__ void draw(DroppedOfBlock<Config>& dropped, int /*key*/, int /*query*/) {
    // The producer's warps come before those that read.
    decisions<Config>().read(dropped, warp_id() - kWarpgroupWarps, parity_);
    parity_ ^= 1;
  }

 private:
  u32 parity_ = 0;
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::dropping {

struct OperandDrawnAhead {
  // Of the producer's warpgroup, those that neither load nor write sums nor clear.
  template <class Config>
  static constexpr int kDrawers =
      kWarpgroupWarps - 1 - Config::kWriterWarps - Config::Lengths::kPerBatch;
  template <class Config>
  static constexpr int kBytes = BlockDecisions<Config>::kBytes;
  template <class Config>
  static __device__ void init_barriers() {
    decisions<Config>().init_barriers();
  }
  // The last warp always draws, the second unless it writes sums, the third unless it clears.
  template <class Config>
  static __device__ void run(const BackwardKernelArgs& args) {
    constexpr bool kWrites = Config::kWriterWarps > 0, kClears = Config::Lengths::kPerBatch;
    const int warp = warp_id();
    if (warp == 0 || (kWrites && warp == 1) || (kClears && warp == 2)) return;
    Drawer<Config>(args, warp == 3 ? 0 : warp == 1 ? 1 : kDrawers<Config> - 1).run();
  }

  template <class Config>
  using Of = OperandFrom<Config, ReadDraws<Config>>;
};

}  // namespace fa::sm90::backward::dropping
