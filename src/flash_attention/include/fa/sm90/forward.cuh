// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel: products are wgmma, read straight from shared memory. Config binds the slots;
// Config::Roles says who copies and who computes.
#pragma once
#include <fa/forward_args.cuh>
#include <fa/sm90/smem_start.cuh>
#include <fa/sm90/tensor_maps.cuh>

namespace fa::sm90 {

template <class Config, class Maps>
__device__ void forward(const Maps& maps, const ForwardKernelArgs& args, const void* smem) {
  check_smem_start(smem);
  Config::Roles::template run<Config>(maps, args, kSmemStart);
}

}  // namespace fa::sm90
