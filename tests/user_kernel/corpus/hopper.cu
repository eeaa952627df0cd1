// SPDX-License-Identifier: Apache-2.0
// 8-bit floats on tensor cores, and mbarriers that are waited for by the state of an arrival.

typedef unsigned u32;
typedef unsigned long long u64;

__device__ u32 address_of(const void* shared) {
  return static_cast<u32>(__cvta_generic_to_shared(shared));
}

__global__ void mma_e4m3(float* out, const u32* a_rows, const u32* b_rows) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[4], b[2];
  for (int block = 0; block < 2; ++block) {
    a[2 * block] = a_rows[g * 8 + 4 * block + t];
    a[2 * block + 1] = a_rows[(g + 8) * 8 + 4 * block + t];
    b[block] = b_rows[g * 8 + 4 * block + t];
  }
  float c[4] = {};
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  out[g * 8 + 2 * t] = c[0];
  out[g * 8 + 2 * t + 1] = c[1];
  out[(g + 8) * 8 + 2 * t] = c[2];
  out[(g + 8) * 8 + 2 * t + 1] = c[3];
}

__global__ void rotate_behind_tokens(int* out, const int* in, int rounds) {
  __shared__ u64 barrier;
  __shared__ int values[2][128];
  int t = threadIdx.x;
  if (t == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(&barrier)), "r"(128));
  __syncthreads();
  int value = in[t];
  for (int round = 0; round < rounds; ++round) {
    values[round & 1][t] = value;
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
                 : "=l"(state)
                 : "r"(address_of(&barrier))
                 : "memory");
    u32 done = 0;
    while (!done)
      asm volatile(
          "{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2;"
          " selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(address_of(&barrier)), "l"(state)
          : "memory");
    value = values[round & 1][(t + 1) % 128];
  }
  out[t] = value;
}

__global__ void copies_that_arrive(float* out, const float* in) {
  __shared__ u64 barrier;
  __shared__ alignas(16) float tile[256];
  int t = threadIdx.x;
  if (t == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(&barrier)), "r"(64));
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address_of(tile + 4 * t)),
               "l"(in + 4 * t)
               : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address_of(&barrier))
               : "memory");
  asm volatile(
      "{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
      " @!done bra wait;}" ::"r"(address_of(&barrier))
      : "memory");
  for (int i = t; i < 256; i += 64) out[i] = tile[255 - i];
}

#include <cuda.h>

__global__ void tensor_tile(float* out, const __grid_constant__ CUtensorMap map, int row, int col) {
  __shared__ alignas(128) float tile[8][16];
  __shared__ u64 barrier;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(&barrier)),
        "r"((u32)sizeof(tile))
        : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(address_of(tile)),
        "l"(&map), "r"(col), "r"(row), "r"(address_of(&barrier))
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
      " @!done bra wait;}" ::"r"(address_of(&barrier))
      : "memory");
  out[threadIdx.x] = tile[threadIdx.x / 16][threadIdx.x % 16];
}
