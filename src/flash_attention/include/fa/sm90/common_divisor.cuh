// SPDX-License-Identifier: Apache-2.0
// How many keys a page and a key block have in common: the largest box that lies in one of both.
#pragma once

namespace fa::sm90 {

__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

}  // namespace fa::sm90
