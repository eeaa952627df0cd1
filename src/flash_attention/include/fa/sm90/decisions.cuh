// SPDX-License-Identifier: Apache-2.0
// Which weights of a block are dropped, in shared memory: warps that have nothing else to do draw that a block
// ahead of the warps that compute. Drawing takes as many instructions as the rest of a softmax, or more.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/pipeline.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// A buffer for each of the warpgroups that compute, which is filled and released by itself. `Dropped` is what a
// warp reads.
template <class Dropped, int Warpgroups>
class Decisions {
  using Barriers = PipelineBarriers<1, Warpgroups>;
  static constexpr int kLaneBytes =
      Dropped::kIsOneWord ? sizeof(u32) : Dropped::kGroups * sizeof(ptx::Pair);
  static constexpr int kWarpBytes = kWarpSize * kLaneBytes;
  static constexpr int kBarriers = Warpgroups * kWarpgroupWarps * kWarpBytes;

 public:
  static constexpr int kReaders = Warpgroups * kWarpgroupWarps;
  static constexpr int kBytes = kBarriers + Barriers::kBarrierBytes;

  __device__ explicit Decisions(u32 memory) : memory_(memory) {}

  __device__ void init_barriers() const { barriers().init(0, kWarpgroupWarps, kWarpgroupWarps); }

  // Writes what a reader is going to read, when its warpgroup has read the block before.
  __device__ void write(const Dropped& dropped, int reader, u32 parity) const {
    const int warpgroup = reader / kWarpgroupWarps;
    barriers().acquire(0, parity, warpgroup);
    if constexpr (Dropped::kIsOneWord)
      ptx::st_shared_4(word(reader), dropped.one_word());
    else
#pragma unroll
      for (int group = 0; group < Dropped::kGroups; ++group)
        ptx::st_shared_pair(pair(reader, group), {dropped.bits[group][0], dropped.bits[group][1]});
    __syncwarp();  // all lanes have written
    if (lane_id() == 0) ptx::mbarrier_arrive(barriers().full(0, warpgroup));
  }
  // Of the block, or of its first columns.
  template <class Narrow>
  __device__ void read(Narrow& dropped, int reader, u32 parity) const {
    barriers().wait(0, parity, reader / kWarpgroupWarps);
    if constexpr (Dropped::kIsOneWord) {
      dropped.set(ptx::ld_shared_4(word(reader)));
    } else {
#pragma unroll
      for (int group = 0; group < Narrow::kGroups; ++group) {
        const ptx::Pair bits = ptx::ld_shared_pair(pair(reader, group));
        dropped.bits[group][0] = bits.x, dropped.bits[group][1] = bits.y;
      }
    }
    release(reader);
  }
  // The reader has no use for a block.
  __device__ void pass(int reader, u32 parity) const {
    barriers().wait(0, parity, reader / kWarpgroupWarps);
    release(reader);
  }

 private:
  __device__ Barriers barriers() const { return {memory_ + kBarriers}; }
  // Where this lane has its word, or its pair of a group.
  __device__ u32 word(int reader) const {
    return memory_ + reader * kWarpBytes + lane_id() * sizeof(u32);
  }
  __device__ u32 pair(int reader, int group) const {
    return memory_ + reader * kWarpBytes + (group * kWarpSize + lane_id()) * sizeof(ptx::Pair);
  }
  __device__ void release(int reader) const {
    __syncwarp();  // all lanes have read
    barriers().release(0, reader / kWarpgroupWarps);
  }

  const u32 memory_;
};

// One of `Drawers` warps, which take the readers of all blocks in turns.
template <class Decisions, int Drawers>
class DrawingTurns {
 public:
  __device__ explicit DrawingTurns(int drawer) : reader_(drawer) {}

  // Of a block: draw(dropped, reader) for those whose turn it is.
  template <class Dropped, class Draw>
  __device__ void next_block(Decisions to, Draw draw) {
#pragma unroll 1
    for (; reader_ < Decisions::kReaders; reader_ += Drawers) {
      Dropped dropped;
      draw(dropped, reader_);
      to.write(dropped, reader_, parity_);
    }
    reader_ -= Decisions::kReaders;
    parity_ ^= 1;
  }

 private:
  int reader_;
  u32 parity_ = 0;
};

}  // namespace fa::sm90
