// SPDX-License-Identifier: Apache-2.0
// Going round the stages of Q and dO. The stage is a constant in each turn of a schedule, so that the
// descriptors of its products are constants as well.
#pragma once

namespace fa::sm90::backward {

// Takes turns at all stages from `Stage` on, until Schedule::turn<Stage>(w) says that there is no next
// block. Every tile starts at stage 0, so the stages after its last block are skipped.
template <class Schedule, int Stage = 0, class Warpgroup>
__device__ bool take_turns(Warpgroup& w) {
  if constexpr (Stage < Warpgroup::kStages) {
    if (Schedule::template turn<Stage>(w)) return take_turns<Schedule, Stage + 1>(w);
    w.template skip_stages<Stage + 1>();
    return false;
  }
  return true;
}

}  // namespace fa::sm90::backward
