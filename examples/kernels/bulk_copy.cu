// SPDX-License-Identifier: Apache-2.0
// Doubles numbers that the copy engine (TMA) brings to shared memory.

constexpr int kCount = 256;

__device__ unsigned address_of(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

__global__ void bulk_copy(float* out, const float* in) {
  __shared__ alignas(128) float tile[kCount];
  __shared__ alignas(8) unsigned long long arrived;
  const float* mine = in + blockIdx.x * kCount;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&arrived)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(address_of(&arrived)), "r"(kCount) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 ::"r"(address_of(tile)), "l"(mine), "r"((unsigned)sizeof(tile)),
                 "r"(address_of(&arrived)) : "memory");
  }
  asm volatile("{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
               " @!done bra wait;}" ::"r"(address_of(&arrived)) : "memory");
  out[blockIdx.x * kCount + threadIdx.x] = 2.0f * tile[threadIdx.x];
}
