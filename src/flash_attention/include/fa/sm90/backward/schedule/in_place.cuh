// SPDX-License-Identifier: Apache-2.0
// Two products at a time, and arithmetic under the second of them: dS under dV, the next exponentials
// under dK. It stays in the registers of the accumulators, since the product reads P until it is complete.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward::schedule {

struct InPlace {
  template <class Warpgroup>
  static __device__ void run(Warpgroup& w) {
    first_probabilities(w);
#pragma unroll 1
    while (for_each_stage<InPlace>(w)) {
    }
  }

  // From P of a block to P of the next one, if there is one.
  template <int Stage, class Warpgroup>
  static __device__ bool block(Warpgroup& w) {
    constexpr int kNext = Warpgroup::template kAfter<Stage>;
    auto& s = w.s();
    auto& p = w.p();
    w.template wait_d_o<Stage>();  // dO has arrived
    w.keep(p);
    w.issue_scores(s, w.v(), w.template d_o<Stage>());                         // dP^T = V dO^T
    w.issue_accumulate(w.dv(), w.weights(), w.template d_o_columns<Stage>());  // dV += P^T dO
    w.template wait_products<1>();                                             // dP is complete
    w.template derivative<Stage>(s);                                           // dP becomes dS
    w.template wait_products<0>();  // dV is complete, P and dO were read
    w.template release_d_o<Stage>();
    w.convert_derivative(p, s);
    w.hand_over(p);  // to dQ
    if (!w.next_block()) return last_keys<Stage>(w);
    w.draw();
    w.template wait_q<kNext>();                                    // the next Q has arrived
    w.issue_scores(s, w.k(), w.template q<kNext>());               // the next S
    w.issue_accumulate(w.dk(), p, w.template q_columns<Stage>());  // dK += dS^T Q
    w.template wait_products<1>();                                 // S is complete
    w.template exponentials<kNext>(s);                             // S becomes P
    const bool hides = w.hides();
    w.template wait_products<0>();  // dK is complete, dS and Q were read
    w.template release_q<Stage>();
    w.mask(s, hides);
    w.convert_probabilities(p, s);
    return true;
  }
};

}  // namespace fa::sm90::backward::schedule
