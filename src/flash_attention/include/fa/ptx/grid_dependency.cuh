// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (griddepcontrol): a kernel starts before the previous one has ended.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// The dependent kernel may start when every CTA has executed this or has ended.
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Waits until the previous kernel has ended and its stores are visible.
__device__ inline void wait_for_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace fa::ptx
