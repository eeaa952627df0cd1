// SPDX-License-Identifier: Apache-2.0
// One function for each instruction of sm_90a that the kernels of this folder use.
#pragma once

#define DEVICE __device__ __forceinline__

typedef unsigned u32;
typedef unsigned long long u64;

DEVICE u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(barrier)), "r"(count) : "memory");
}
DEVICE void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
}
DEVICE void expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes)
               : "memory");
}
DEVICE void wait(u64* barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(at(barrier)), "r"(parity)
        : "memory");
}
DEVICE void load(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          at(to)),
      "l"(from), "r"(bytes), "r"(at(barrier))
      : "memory");
}
DEVICE void store(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at(from)),
               "r"(bytes)
               : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
DEVICE u32 rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
DEVICE u32 in_cta(u32 address, u32 r) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(r));
  return there;
}
DEVICE float load_from(const float* p, u32 r) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(in_cta(at(p), r)) : "memory");
  return value;
}
DEVICE void store_to(float* p, u32 r, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(in_cta(at(p), r)), "f"(value) : "memory");
}
DEVICE void arrive_at(u64* barrier, u32 r) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   in_cta(at(barrier), r))
               : "memory");
}
DEVICE void multicast(void* to, const void* from, u32 bytes, u64* barrier, unsigned short ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(at(to)),
      "l"(from), "r"(bytes), "r"(at(barrier)), "h"(ranks)
      : "memory");
}
DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
template <int Pending>
DEVICE void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Tensor copies and products of a warpgroup: 64 rows times 8 columns, 16 deep.
struct alignas(64) TensorMap {
  u64 words[16];
};
DEVICE void load_box(void* to, const TensorMap* map, int x, int y, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(at(to)),
      "l"(map), "r"(at(barrier)), "r"(x), "r"(y)
      : "memory");
}
DEVICE void store_box(const TensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   map),
               "r"(at(from)), "r"(x), "r"(y)
               : "memory");
}
// Swizzles: 1 of 128 bytes, 2 of 64, 3 of 32, 0 of none. Distances are in bytes.
DEVICE u64 descriptor(const void* tile, u64 leading, u64 stride, u64 swizzle) {
  return at(tile) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62;
}
DEVICE void multiply(float* d, u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
DEVICE void put_rows(float* out, const float* d) {
  int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}
