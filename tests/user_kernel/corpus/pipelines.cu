// SPDX-License-Identifier: Apache-2.0
// Bulk copies behind mbarriers: a warp that loads ahead of those that compute, and a bulk store.

typedef unsigned u32;
typedef unsigned long long u64;

#define STAGES 2
#define CHUNK 128  // floats of a stage

__device__ u32 address_of(const void* shared) {
  return static_cast<u32>(__cvta_generic_to_shared(shared));
}

__device__ void init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(arrivals));
}

__device__ void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(barrier)) : "memory");
}

__device__ void expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ void wait(u64* barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
      " @!done bra wait;}" ::"r"(address_of(barrier)),
      "r"(parity)
      : "memory");
}

__device__ void load(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(address_of(shared)),
      "l"(global), "r"(bytes), "r"(address_of(barrier))
      : "memory");
}

__global__ void pipelined_scale(float* out, const float* in, float factor, int chunks) {
  __shared__ alignas(16) float ring[STAGES][CHUNK];
  __shared__ u64 full[STAGES], empty[STAGES];
  int t = threadIdx.x;
  if (t == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init(&full[stage], 1);
      init(&empty[stage], CHUNK);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (t >= CHUNK) {
    for (int i = 0; t == CHUNK && i < chunks; ++i) {
      int stage = i % STAGES;
      if (i >= STAGES) wait(&empty[stage], i / STAGES - 1 & 1);
      expect(&full[stage], sizeof(ring[0]));
      load(ring[stage], in + i * CHUNK, sizeof(ring[0]), &full[stage]);
    }
    return;
  }
  for (int i = 0; i < chunks; ++i) {
    int stage = i % STAGES;
    wait(&full[stage], i / STAGES & 1);
    float value = ring[stage][t];
    arrive(&empty[stage]);
    out[i * CHUNK + t] = factor * value;
  }
}

__global__ void bulk_stored_squares(float* out, const float* in) {
  __shared__ alignas(16) float tile[CHUNK];
  int t = threadIdx.x;
  float value = in[blockIdx.x * CHUNK + t];
  tile[t] = value * value;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     out + blockIdx.x * CHUNK),
                 "r"(address_of(tile)), "r"((u32)sizeof(tile))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
