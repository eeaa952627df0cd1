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

// P of the first block. From here on each turn begins with the P of its block.
template <class Warpgroup>
__device__ void first_probabilities(Warpgroup& w) {
  w.template wait_q<0>();                           // Q has arrived
  w.issue_scores(w.s(), w.k(), w.template q<0>());  // S^T = K Q^T
  w.template wait_products<0>();                    // S is complete
  w.template exponentials<0>(w.s());                // S becomes P
  w.limit(w.s(), w.template has_limits<0>());
  w.convert_probabilities(w.p(), w.s());
}

// dK of the last block, whose turn ends with it. There is no next block.
template <int Stage, class Warpgroup>
__device__ bool last_keys(Warpgroup& w) {
  w.issue_accumulate(w.dk(), w.p(), w.template q_columns<Stage>());  // dK += dS^T Q
  w.store_dv();
  w.template wait_products<0>();  // dK is complete, Q was read
  w.template release_q<Stage>();
  return false;
}

}  // namespace fa::sm90::backward
