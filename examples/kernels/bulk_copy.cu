// SPDX-License-Identifier: Apache-2.0
// Doubles numbers that the copy engine (TMA) brings to shared memory.

constexpr int kCount = 256;
using Barrier = unsigned long long;

__device__ unsigned address_of(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

__device__ void init(Barrier* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(barrier)));
  asm volatile("fence.mbarrier_init.release.cluster;");  // the copy engine sees it too
}

__device__ void expect_bytes(Barrier* barrier, unsigned bytes) {
  unsigned at = address_of(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes));
}

__device__ void copy(float* tile, const float* from, unsigned bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(address_of(tile)),
      "l"(from), "r"(bytes), "r"(address_of(barrier))
      : "memory");
}

__device__ void wait(Barrier* barrier) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
      " @!done bra again;}" ::"r"(address_of(barrier))
      : "memory");
}

__global__ void bulk_copy(float* out, const float* in) {
  __shared__ alignas(128) float tile[kCount];
  __shared__ Barrier arrived;
  int first = blockIdx.x * kCount;
  if (threadIdx.x == 0) init(&arrived);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect_bytes(&arrived, kCount);
    copy(tile, in + first, sizeof(tile), &arrived);
  }
  wait(&arrived);
  out[first + threadIdx.x] = 2.0f * tile[threadIdx.x];
}
