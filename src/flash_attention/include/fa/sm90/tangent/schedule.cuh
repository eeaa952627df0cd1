// SPDX-License-Identifier: Apache-2.0
// The order of a key block: every elementwise step runs while the tensor cores have products to do, the softmax
// during those of the tangent of S, and the product of P with it during those of P.
#pragma once

namespace fa::sm90::tangent {

struct Schedule {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
#pragma unroll 1
    while (c.has_block()) {
      c.wait_keys();  // K and dK have arrived
      c.align();
      c.issue_scores();               // S = Q K^T
      c.issue_slopes();               // dS = dQ K^T + Q dK^T
      c.template wait_products<1>();  // S is complete
      c.change();
      c.mask();
      c.softmax();                    // S becomes P
      c.wait_values();                // V and dV have arrived
      c.issue_weighted();             // O += P V, dO += P dV
      c.template wait_products<1>();  // dS is complete, K and dK were read
      c.release_keys();
      c.release_queries();
      c.weigh_slopes();               // dS becomes W, P times dS
      c.issue_sloped();               // dO += W V
      c.template wait_products<0>();  // O and dO are complete, V and dV were read
      c.release_values();
      c.next_block();
    }
  }
};

}  // namespace fa::sm90::tangent
