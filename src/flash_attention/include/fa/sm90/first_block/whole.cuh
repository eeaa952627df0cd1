// SPDX-License-Identifier: Apache-2.0
// The first block of a warpgroup is as wide as the others.
#pragma once

namespace fa::sm90::first_block {

struct Whole {
  template <class Consumer>
  static __device__ void run(Consumer&) {}
};

}  // namespace fa::sm90::first_block
