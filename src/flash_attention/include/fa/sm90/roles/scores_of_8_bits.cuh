// SPDX-License-Identifier: Apache-2.0
// Warp specialisation for Q, K and V of 8 bits: scores are products of 8 bits, and a single consumer, which
// waits most of the time, converts V to 16 bits for its own products.
#pragma once
#include <fa/sm90/roles/converting.cuh>
#include <fa/sm90/roles/specialised.cuh>

namespace fa::sm90::roles {

struct ScoresOf8Bits : Specialised {
  template <class Config>
  static __device__ void wait_values(const SharedMemory<Config>& smem,
                                     const Ring<Config::kStages>& at, bool& is_there) {
    static_assert(kConsumerConverts<Config>);
    convert_values<Config>(smem.v_pipeline(), smem, at, is_there);
  }
  // V of 8 bits was released when it was converted.
  template <class Config>
  static __device__ void release_values(const SharedMemory<Config>&, const Ring<Config::kStages>&) {
  }
};

}  // namespace fa::sm90::roles
