// SPDX-License-Identifier: Apache-2.0
// MLA decoding on sm_90a: one head of K, whose first columns are V.
#pragma once
#include <fa/sm90/mla/consumer.cuh>
#include <fa/sm90/mla/producer.cuh>
#include <fa/sm90/split_v/forward.cuh>

namespace fa::sm90::mla {

template <class T, class Config>
concept ScheduleSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(split_v::check_slots<Config>());
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: run(consumer)");
  return true;
}

template <class Config>
__device__ void forward(const TensorMaps& maps, const ForwardKernelArgs& args,
                        const void* dynamic) {
  static_assert(check_slots<Config>());
  static_assert(split_v::check_host_numbers<Config, SharedMemory<Config>::kBytes>());
  split_v::run<Config, SharedMemory<Config>, Producer<Config>, Consumer<Config>>(maps, args,
                                                                                 dynamic);
}

}  // namespace fa::sm90::mla
