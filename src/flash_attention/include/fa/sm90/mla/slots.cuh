// SPDX-License-Identifier: Apache-2.0
// The slots of MLA kernels.
#pragma once
#include <fa/sm90/halves/slots.cuh>

namespace fa::sm90::mla {

template <class Config>
class Consumer;

template <class T, class Config>
concept ScheduleSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

// Fails to compile at the first slot whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(halves::check_slots<Config>());
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: run(consumer)");
  return true;
}

}  // namespace fa::sm90::mla
