// SPDX-License-Identifier: Apache-2.0
// Warps beside the producer draw which weights are dropped, a block ahead of the consumers.
#pragma once
#include <fa/sm90/decisions.cuh>
#include <fa/sm90/roles/specialised.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

template <class Config>
using DroppedOfBlock =
    typename Config::Dropout::template Dropped<attn::RowsOf::kQueries, Config::kBC / kWarpRows>;
template <class Config>
using BlockDecisions = Decisions<DroppedOfBlock<Config>, Config::kConsumers>;

template <class Config>
class Drawer {
 public:
  __device__ Drawer(const SharedMemory<Config>& smem, const ForwardKernelArgs& args, int drawer)
      : smem_(smem), args_(args), dropout_(args), turns_(drawer) {}

  __device__ void run() {
    Tile tile;
    attn::Sequence sequence;
    for (u32 parity = 0; take_tile<Config>(smem_.mail(), args_, tile, sequence, parity);
         parity ^= 1) {
      dropout_.begin_head(tile.batch * args_.heads + tile.head);
      const int row = tile.q_block * Shape<Config>::kBR;
      const auto range = key_range<Config>(tile, sequence, args_);
      const auto [first, end] = blocks_of<Config>(range, tile, args_);
#pragma unroll 1
      for (int place = end - 1; place >= first; --place) {
        const int key = range.key_block(place) * Config::kBC;
        turns_.template next_block<DroppedOfBlock<Config>>(
            Block(smem_.decisions()), [&](DroppedOfBlock<Config>& dropped, int reader) {
              dropout_.draw(dropped, row + reader * kWarpRows, key, args_);
            });
      }
    }
  }

 private:
  using Block = BlockDecisions<Config>;

  const SharedMemory<Config>& smem_;
  const ForwardKernelArgs& args_;
  typename Config::Dropout dropout_;
  DrawingTurns<Block, Config::Drawing::template kWarps<Config>> turns_;
};

}  // namespace fa::sm90

namespace fa::sm90::drawing {

struct Ahead {
  template <class Config>
  static constexpr int kWarps = kWarpgroupWarps - Config::Pages::template kWarps<Config>;
  template <class Config>
  static constexpr int kBytes = BlockDecisions<Config>::kBytes;
  template <class Config>
  static __device__ void init_barriers(const SharedMemory<Config>& smem) {
    BlockDecisions<Config>(smem.decisions()).init_barriers();
  }
  template <class Config>
  static __device__ void run(const SharedMemory<Config>& smem, const ForwardKernelArgs& args) {
    Drawer<Config>(smem, args, warp_id() - Config::Pages::template kWarps<Config>).run();
  }

  template <class Config>
  class Of {
   public:
    __device__ explicit Of(const ForwardKernelArgs&) {}
    __device__ void begin_head(int /*head_of_all*/) {}
    template <class Dropped>
    __device__ void draw(Dropped& dropped, const SharedMemory<Config>& smem, int /*row*/,
                         int /*key*/, const ForwardKernelArgs&) {
      BlockDecisions<Config>(smem.decisions()).read(dropped, reader(), parity_);
      parity_ ^= 1;
    }
    __device__ void pass(const SharedMemory<Config>& smem) {
      BlockDecisions<Config>(smem.decisions()).pass(reader(), parity_);
      parity_ ^= 1;
    }

   private:
    // The producer's warps come before those of the consumers.
    static __device__ int reader() { return warp_id() - kWarpgroupWarps; }

    u32 parity_ = 0;
  };
};

}  // namespace fa::sm90::drawing
