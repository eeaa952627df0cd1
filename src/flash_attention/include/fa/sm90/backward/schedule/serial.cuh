// SPDX-License-Identifier: Apache-2.0
// One product at a time: each is waited for before the next is issued.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward::schedule {

struct Serial {
  template <class Warpgroup>
  static __device__ void run(Warpgroup& w) {
#pragma unroll 1
    while (for_each_stage<Serial>(w)) {
    }
  }

  // One block. Returns whether there is a next one.
  template <int Stage, class Warpgroup>
  static __device__ bool block(Warpgroup& w) {
    auto& s = w.s();
    auto& p = w.p();
    w.template wait_q<Stage>();                       // Q has arrived
    w.issue_scores(s, w.k(), w.template q<Stage>());  // S^T = K Q^T
    w.draw();
    const bool hides = w.hides();
    w.template wait_products<0>();      // S is complete
    w.template exponentials<Stage>(s);  // S becomes P
    w.mask(s, hides);
    w.convert_probabilities(p, s);
    w.template wait_d_o<Stage>();  // dO has arrived
    w.keep(p);
    w.issue_scores(s, w.v(), w.template d_o<Stage>());                         // dP^T = V dO^T
    w.template wait_products<0>();                                             // dP is complete
    w.issue_accumulate(w.dv(), w.weights(), w.template d_o_columns<Stage>());  // dV += P^T dO
    w.template wait_products<0>();    // dV is complete, P and dO were read
    w.template derivative<Stage>(s);  // dP becomes dS
    w.template release_d_o<Stage>();
    w.convert_derivative(p, s);
    w.hand_over(p);                                                // to dQ
    w.issue_accumulate(w.dk(), p, w.template q_columns<Stage>());  // dK += dS^T Q
    w.template wait_products<0>();                                 // dK is complete, Q was read
    w.template release_q<Stage>();
    if (w.next_block()) return true;
    w.store_dv();
    return false;
  }
};

}  // namespace fa::sm90::backward::schedule
