// SPDX-License-Identifier: Apache-2.0
// CTAs of a cluster that read, write and fill each other's shared memory.

typedef unsigned u32;
typedef unsigned long long u64;

__device__ u32 address_of(const void* shared) {
  return static_cast<u32>(__cvta_generic_to_shared(shared));
}
__device__ u32 rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ u32 ranks() {
  u32 n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
__device__ u32 in_cta(u32 address, u32 of_rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(of_rank));
  return mapped;
}
__device__ void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void sync_cluster() {
  arrive_cluster();
  wait_cluster();
}
__device__ void init_barrier(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(count));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect_bytes(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ void wait_barrier(u64* barrier, u32 parity) {
  asm volatile(
      "{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra "
      "AGAIN;}" ::"r"(address_of(barrier)),
      "r"(parity)
      : "memory");
}

// Every CTA of a cluster sums its numbers; the first one adds the sums of all.
__global__ void __cluster_dims__(2, 2, 1) cluster_sum(int* out, const int* in) {
  __shared__ int sum;
  int cta = blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, in[cta * blockDim.x + threadIdx.x]);
  sync_cluster();
  if (rank() == 0 && threadIdx.x == 0) {
    int total = 0;
    for (u32 r = 0; r < ranks(); ++r) {
      int part;
      asm volatile("ld.shared::cluster.s32 %0, [%1];"
                   : "=r"(part)
                   : "r"(in_cta(address_of(&sum), r))
                   : "memory");
      total += part;
    }
    out[blockIdx.y / 2 * (gridDim.x / 2) + blockIdx.x / 2] = total;
  }
  sync_cluster();
}

// Through pointers: every CTA reads the row of the next one.
__global__ void __cluster_dims__(4, 1, 1) rotate_rows(float* out, const float* in) {
  __shared__ float row[64];
  row[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  const float* next = (const float*)__cluster_map_shared_rank(row, (rank() + 1) % ranks());
  out[blockIdx.x * 64 + threadIdx.x] = next[threadIdx.x];
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}

// Bins are dealt to the CTAs of a cluster.
__global__ void __cluster_dims__(2, 1, 1) cluster_histogram(int* out, const int* in, int per_cta) {
  __shared__ int bins[32];
  if (threadIdx.x < 32) bins[threadIdx.x] = 0;
  sync_cluster();
  for (int i = threadIdx.x; i < per_cta; i += blockDim.x) {
    u32 bin = in[blockIdx.x * per_cta + i];
    u32 place = in_cta(address_of(&bins[bin % 32]), bin / 32);
    asm volatile("red.relaxed.cluster.shared::cluster.add.s32 [%0], 1;" ::"r"(place) : "memory");
  }
  sync_cluster();
  if (threadIdx.x < 32) out[rank() * 32 + threadIdx.x] = bins[threadIdx.x];
}

// Every CTA stores a row into the next one's memory, and tells it through an mbarrier there.
__global__ void __cluster_dims__(2, 1, 1) pass_rows(float* out, const float* in, int rounds) {
  __shared__ u64 full[2];
  __shared__ float row[2][64];
  if (threadIdx.x < 2) init_barrier(&full[threadIdx.x], 1);
  sync_cluster();
  float value = in[blockIdx.x * 64 + threadIdx.x];
  u32 next = (rank() + 1) % ranks();
  for (int round = 0; round < rounds; ++round) {
    int buffer = round & 1;
    u32 to = in_cta(address_of(&row[buffer][threadIdx.x]), next);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value + 1) : "memory");
    __syncthreads();
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                       in_cta(address_of(&full[buffer]), next))
                   : "memory");
    wait_barrier(&full[buffer], round >> 1 & 1);
    value = row[buffer][threadIdx.x];
  }
  out[blockIdx.x * 64 + threadIdx.x] = value;
  sync_cluster();
}

// The first CTA of a cluster loads a row for all of them.
__global__ void __cluster_dims__(2, 1, 1) multicast_rows(float* out, const float* in) {
  __shared__ u64 full;
  __shared__ alignas(128) float row[256];
  if (threadIdx.x == 0) {
    init_barrier(&full, 1);
    expect_bytes(&full, sizeof(row));
  }
  sync_cluster();
  if (rank() == 0 && threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" ::"r"(address_of(row)),
        "l"(in + blockIdx.x / 2 * 256), "r"((u32)sizeof(row)), "r"(address_of(&full)),
        "h"((unsigned short)3)
        : "memory");
  wait_barrier(&full, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    out[blockIdx.x * 256 + i] = row[i] * (rank() + 1);
  sync_cluster();
}

// Every CTA sends its row to the other one by the copy engine.
__global__ void __cluster_dims__(2, 1, 1) send_rows(float* out, const float* in) {
  __shared__ u64 full;
  __shared__ alignas(128) float mine[64], theirs[64];
  mine[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == 0) {
    init_barrier(&full, 1);
    expect_bytes(&full, sizeof(mine));
  }
  sync_cluster();
  if (threadIdx.x == 0) {
    u32 other = rank() ^ 1;
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2,"
        " [%3];" ::"r"(in_cta(address_of(theirs), other)),
        "r"(address_of(mine)), "r"((u32)sizeof(mine)), "r"(in_cta(address_of(&full), other))
        : "memory");
  }
  wait_barrier(&full, 0);
  out[blockIdx.x * 64 + threadIdx.x] = theirs[threadIdx.x];
  sync_cluster();
}

// Copies of threads that hold an mbarrier back until they have landed.
__global__ void held_by_copies(float* out, const float* in) {
  __shared__ u64 full;
  __shared__ alignas(16) float row[64];
  if (threadIdx.x == 0) init_barrier(&full, 64);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address_of(&row[threadIdx.x])),
               "l"(in + threadIdx.x)
               : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(address_of(&full))
               : "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(&full)) : "memory");
  wait_barrier(&full, 0);
  out[threadIdx.x] = row[63 - threadIdx.x];
}
