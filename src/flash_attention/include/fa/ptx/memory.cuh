// SPDX-License-Identifier: Apache-2.0
// Plain loads and stores of global and shared memory, 4 to 16 bytes wide.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

struct Chunk {
  u32 x, y, z, w;
};

struct Pair {
  u32 x, y;
};

__device__ inline u32 smem_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

__device__ inline Chunk ld_global_16(const void* gmem) {
  Chunk c;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
               : "l"(gmem)
               : "memory");
  return c;
}

__device__ inline Chunk ld_global_16_no_l1(const void* gmem) {
  Chunk c;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
               : "l"(gmem)
               : "memory");
  return c;
}

__device__ inline void st_global_16(void* gmem, Chunk c) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(gmem), "r"(c.x), "r"(c.y), "r"(c.z),
               "r"(c.w)
               : "memory");
}

__device__ inline void st_global_16_no_l1(void* gmem, Chunk c) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(gmem), "r"(c.x),
               "r"(c.y), "r"(c.z), "r"(c.w)
               : "memory");
}

__device__ inline void st_global_4(void* gmem, u32 x) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(gmem), "r"(x) : "memory");
}

__device__ inline void st_global_4_no_l1(void* gmem, u32 x) {
  asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(gmem), "r"(x) : "memory");
}

__device__ inline void st_global_8(void* gmem, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(gmem), "f"(x), "f"(y) : "memory");
}

__device__ inline void st_global_8(void* gmem, u32 x, u32 y) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(gmem), "r"(x), "r"(y) : "memory");
}

__device__ inline Pair ld_shared_pair(u32 smem) {
  Pair p;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(p.x), "=r"(p.y) : "r"(smem) : "memory");
  return p;
}

__device__ inline Chunk ld_shared_16(u32 smem) {
  Chunk c;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
               : "r"(smem)
               : "memory");
  return c;
}

__device__ inline u32 ld_shared_4(u32 smem) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(smem) : "memory");
  return x;
}

// The same value in a register that the compiler takes for another one.
__device__ inline u32 copy(u32 x) {
  u32 y;
  asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The compiler does not compute the address again for every access, as it does behind branches.
template <class T>
__device__ T* computed_once(T* address) {
  asm volatile("" : "+l"(address));
  return address;
}

struct FloatPair {
  float x, y;
};

__device__ inline FloatPair ld_shared_8(u32 smem) {
  FloatPair pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(smem)
               : "memory");
  return pair;
}

__device__ inline void st_shared_8(u32 smem, FloatPair pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(smem), "f"(pair.x), "f"(pair.y) : "memory");
}

__device__ inline void ld_shared_floats(float (&x)[4], u32 smem) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(smem)
               : "memory");
}

__device__ inline void st_shared_floats(u32 smem, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

__device__ inline void st_shared_16(u32 smem, Chunk c) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(c.x), "r"(c.y), "r"(c.z),
               "r"(c.w)
               : "memory");
}

__device__ inline void st_shared_4(u32 smem, u32 x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem), "r"(x) : "memory");
}

// Reads of four 8x8 matrices of 16-bit elements from shared memory. Lane l names row l % 8 of
// matrix l / 8; it receives of each matrix the elements (l / 4, 2 (l % 4) .. + 1), or of its
// transpose.
__device__ inline void ldmatrix_x4(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

__device__ inline void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

// Writes of four 8x8 matrices of 16-bit elements to shared memory, the mirror of ldmatrix: lane l
// names row l % 8 of matrix l / 8 and gives the elements (l / 4, 2 (l % 4) .. + 1) of each.
__device__ inline void stmatrix_x4(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The transposes of the matrices: the lane's elements are (2 (l % 4) .. + 1, l / 4) of each.
__device__ inline void stmatrix_x4_trans(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Additions to global memory that return nothing.
__device__ inline void red_add(float* gmem, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(gmem), "f"(x) : "memory");
}

// NOTE: PTX ISA 9.7.13, red: vectors need sm_90. The address is a multiple of 16 bytes.
__device__ inline void red_add_4(float* gmem, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(gmem), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

// Semaphores in global memory. A thread that sees a count also sees what was written before
// the counter reached it.
__device__ inline int ld_acquire(const int* gmem) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(gmem) : "memory");
  return x;
}

__device__ inline void wait_for_count(const int* gmem, int count) {
  while (ld_acquire(gmem) != count) {
  }
}

__device__ inline void count_up(int* gmem) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(gmem) : "memory");
}

// Orders bulk copies of global memory with ordinary accesses of this thread, before and after it.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace fa::ptx
