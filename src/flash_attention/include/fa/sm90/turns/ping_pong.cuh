// SPDX-License-Identifier: Apache-2.0
// Ping-pong: consumers alternate in issuing their products. While one computes exponentials, the other
// uses the tensor cores. A warpgroup waits at its own barrier, where the previous one arrives.
#pragma once
#include <fa/sm90/named_barriers.cuh>

namespace fa::sm90::turns {

struct PingPong {
  template <int Consumers>
  class Order {
   public:
    __device__ explicit Order(int warpgroup) : warpgroup_(warpgroup) {
      if (warpgroup == Consumers - 1) end();  // opens the first turn of warpgroup 0
    }
    __device__ void begin() const {
      // Waits until the previous warpgroup has issued its products.
      ptx::named_barrier_sync(id_of(NamedBarrier::kTurn, warpgroup_), 2 * kWarpgroupSize);
    }
    __device__ void end() const {
      const int next = warpgroup_ == Consumers - 1 ? 0 : warpgroup_ + 1;
      ptx::named_barrier_arrive(id_of(NamedBarrier::kTurn, next), 2 * kWarpgroupSize);
    }
    __device__ void finish() const {
      if (warpgroup_ == 0) begin();  // consumes the arrival that nobody waited for
    }

   private:
    const int warpgroup_;
  };
};

}  // namespace fa::sm90::turns
