// SPDX-License-Identifier: Apache-2.0
// A kernel that is launched before the one it depends on has ended: griddepcontrol.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// The kernel that depends on this one may start when every CTA has said so, or has ended.
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Until the kernel this one depends on has ended and all it stored can be seen.
__device__ inline void wait_for_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace fa::ptx
