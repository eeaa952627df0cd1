// SPDX-License-Identifier: Apache-2.0
// The m16n8k16 product of each data type.
#pragma once
#include <fa/ptx/mma.cuh>

namespace fa::dtype {
struct Fp16;
struct Bf16;
}  // namespace fa::dtype

namespace fa::sm80 {

template <class DType>
__device__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

template <>
__device__ inline void mma<dtype::Fp16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  ptx::mma_m16n8k16_f16(d, a, b0, b1);
}

template <>
__device__ inline void mma<dtype::Bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  ptx::mma_m16n8k16_bf16(d, a, b0, b1);
}

}  // namespace fa::sm80
