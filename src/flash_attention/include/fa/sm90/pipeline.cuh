// SPDX-License-Identifier: Apache-2.0
// A pipeline: buffers in shared memory that one side fills and the other reads, and their mbarriers. `full`
// completes a phase when a buffer is filled, `empty` when all its readers have released it.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// The barriers of a pipeline, from `barriers` on: those that say full, then those that say empty. A stage may
// have parts, which are filled each by itself. They are released each by itself, or all by one barrier, or by
// none if the stage is filled once or its writer knows by other means.
template <int Stages, int Parts = 1, int Empties = Parts>
struct PipelineBarriers {
  static constexpr int kStages = Stages;
  static constexpr int kBarrierBytes = Stages * (Parts + Empties) * ptx::kMbarrierBytes;

  u32 barriers;

  __device__ ptx::Mbarrier full(int stage, int part = 0) const {
    return {barriers + (stage * Parts + part) * ptx::kMbarrierBytes};
  }
  __device__ ptx::Mbarrier empty(int stage, int part = 0) const {
    return {barriers + (Stages * Parts + stage * Empties + part) * ptx::kMbarrierBytes};
  }

  // `writers` arrivals fill a stage, and `readers` arrivals empty it.
  __device__ void init_full(int stage, int writers, int part = 0) const {
    ptx::mbarrier_init(full(stage, part), writers);
  }
  __device__ void init_empty(int stage, int readers, int part = 0) const {
    ptx::mbarrier_init(empty(stage, part), readers);
  }
  __device__ void init(int stage, int writers, int readers) const {
    static_assert(Empties == Parts);
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
      init_full(stage, writers, part);
      init_empty(stage, readers, part);
    }
  }

  // Waits until all readers have released what the stage held before: it may be filled.
  __device__ void acquire(int stage, u32 parity, int part = 0) const {
    ptx::mbarrier_wait(empty(stage, part), parity ^ 1);
  }
  __device__ void acquire(const Ring<Stages>& at, int part = 0) const {
    ptx::mbarrier_wait(empty(at.stage, part), at.parity ^ 1);
  }

  // Waits until all readers have released what the stage holds.
  __device__ void wait_empty(int stage, u32 parity) const {
    ptx::mbarrier_wait(empty(stage), parity);
  }
  __device__ void wait_empty(const Ring<Stages>& at) const {
    ptx::mbarrier_wait(empty(at.stage), at.parity);
  }

  // This warp has written its share of the stage. All its lanes have.
  __device__ void commit(int stage) const {
    if (lane_id() == 0) ptx::mbarrier_arrive(full(stage));
  }

  // Waits until the stage is filled.
  __device__ void wait(int stage, u32 parity, int part = 0) const {
    ptx::mbarrier_wait(full(stage, part), parity);
  }
  __device__ void wait(const Ring<Stages>& at) const {
    ptx::mbarrier_wait(full(at.stage), at.parity);
  }

  // This warp will not read the stage again. All its lanes have read it.
  __device__ void release(int stage, int part = 0) const {
    if (lane_id() == 0) ptx::mbarrier_arrive(empty(stage, part));
  }
  __device__ void release(const Ring<Stages>& at) const { release(at.stage); }
};

// A pipeline with its buffers, which follow each other from `tiles` on.
template <class Tile, int Stages>
struct Pipeline : PipelineBarriers<Stages> {
  static constexpr int kTileBytes = Stages * Tile::kBytes;

  u32 tiles;

  __device__ Pipeline(u32 tiles, u32 barriers) : PipelineBarriers<Stages>{barriers}, tiles(tiles) {}

  __device__ Tile tile(int stage) const { return Tile{tiles + stage * Tile::kBytes}; }
};

}  // namespace fa::sm90
