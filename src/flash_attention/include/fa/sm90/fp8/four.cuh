// SPDX-License-Identifier: Apache-2.0
// Four numbers of a row that a lane has of two 8-column fragments, x and y, of an accumulator.
#pragma once
#include <fa/core.cuh>

namespace fa::sm90::fp8 {

struct Four {
  float v[4];
};

// The pair of x, then that of y. `h` is the upper or the lower of the lane's rows.
__device__ inline Four in_turn(const float (&x)[4], const float (&y)[4], int h) {
  return {x[2 * h], x[2 * h + 1], y[2 * h], y[2 * h + 1]};
}

// The numbers of x at even places, those of y at odd ones.
__device__ inline Four interleaved(const float (&x)[4], const float (&y)[4], int h) {
  return {x[2 * h], y[2 * h], x[2 * h + 1], y[2 * h + 1]};
}

}  // namespace fa::sm90::fp8
