// SPDX-License-Identifier: Apache-2.0
// Every consumer issues its products when it is ready, its four warps together. They need not: but
// past a barrier the compiler knows them convergent, and keeps the operand addresses in uniform
// registers, which saves two moves a product.
#pragma once
#include <fa/sm90/named_barriers.cuh>

namespace fa::sm90::turns {

struct Free {
  template <int Consumers>
  class Order {
   public:
    __device__ explicit Order(int warpgroup) : warpgroup_(warpgroup) {}
    __device__ void begin() const {
      // The four warps are together.
      ptx::named_barrier_sync(id_of(NamedBarrier::kTurn, warpgroup_), kWarpgroupSize);
    }
    __device__ void end() const {}
    __device__ void finish() const {}

   private:
    const int warpgroup_;
  };
};

}  // namespace fa::sm90::turns
