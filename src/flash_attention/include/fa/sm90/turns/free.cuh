// SPDX-License-Identifier: Apache-2.0
// Every consumer issues its products when it is ready. The barrier of its four warps is not needed for
// correctness: after it the compiler knows that they are convergent, and keeps the operand addresses
// in uniform registers, which saves two moves per product.
#pragma once
#include <fa/sm90/named_barriers.cuh>

namespace fa::sm90::turns {

struct Free {
  template <int Consumers>
  class Order {
   public:
    __device__ explicit Order(int warpgroup) : warpgroup_(warpgroup) {}
    __device__ void begin() const {
      // Waits for the four warps.
      ptx::named_barrier_sync(id_of(NamedBarrier::kTurn, warpgroup_), kWarpgroupSize);
    }
    __device__ void end() const {}
    __device__ void finish() const {}

   private:
    const int warpgroup_;
  };
};

}  // namespace fa::sm90::turns
