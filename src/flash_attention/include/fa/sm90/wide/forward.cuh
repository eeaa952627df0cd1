// SPDX-License-Identifier: Apache-2.0
// Heads that are wider than the registers of a warpgroup have room for, on sm_90a.
#pragma once
#include <fa/sm90/split_v/forward.cuh>
#include <fa/sm90/wide/consumer.cuh>
#include <fa/sm90/wide/producer.cuh>

namespace fa::sm90::wide {

template <class Config>
__device__ void forward(const TensorMaps& maps, const ForwardKernelArgs& args,
                        const void* dynamic) {
  static_assert(split_v::check_slots<Config>());
  static_assert(split_v::check_host_numbers<Config, SharedMemory<Config>::kBytes>());
  split_v::run<Config, SharedMemory<Config>, Producer<Config>, Consumer<Config>>(maps, args,
                                                                                 dynamic);
}

}  // namespace fa::sm90::wide
