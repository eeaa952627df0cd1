// SPDX-License-Identifier: Apache-2.0
// Descale factors in global memory, and the softmax scale with those of Q and K.
#pragma once
#include <fa/forward_args.cuh>

namespace fa::sm90::descale {

__device__ inline float factor(const float* factors, const DescaleStrides& stride, int batch,
                               int kv_head, int block = 0) {
  return factors[batch * stride.batch + kv_head * stride.head + block * stride.block];
}

// The softmax scale of a head, times its factor of Q, if Q has 8 bits, and times `more`.
__device__ inline float softmax_scale(const ForwardKernelArgs& args, int batch, int kv_head,
                                      float more) {
  float scale = args.softmax_scale * more;
  if (args.q_descale) scale *= factor(args.q_descale, args.q_descale_stride, batch, kv_head);
  return scale == 0.f ? 0x1p-64f : scale;  // hidden scores stay -inf
}

// The caller's arguments with another softmax scale.
__device__ inline CallArgs rescaled(const CallArgs& call, float scale) {
  CallArgs changed = call;
  changed.softmax_scale = scale;
  return changed;
}

}  // namespace fa::sm90::descale
