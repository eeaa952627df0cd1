// SPDX-License-Identifier: Apache-2.0
// What goes on while a thread computes: copies between global and shared memory, the barriers where threads
// wait for copies and for each other, the registers that warpgroups exchange, the next kernel.
#pragma once
#include <fa/core.cuh>

namespace fa::ptx {

// mbarriers: 8-byte counters in shared memory. A phase ends when all arrivals and all announced
// bytes are in; its parity flips with every phase. A wait for parity p passes once the phase of that
// parity has ended, so a fresh barrier lets a wait for parity 1 pass.
inline constexpr int kMbarrierBytes = 8;

struct Mbarrier {
  u32 address;  // in shared memory
};

__device__ inline void mbarrier_init(Mbarrier barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(arrivals));
}

// Makes the initialised barriers visible to TMA.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(Mbarrier barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
}

__device__ inline void mbarrier_arrive_expect(Mbarrier barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

// Adds to the expected bytes without arriving.
__device__ inline void mbarrier_expect(Mbarrier barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_wait(Mbarrier barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
}

// The sixteen hardware barriers of a CTA; 0 is __syncthreads. `threads` counts those that wait and
// those that only arrive.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Asynchronous copies from global to shared memory, in groups that complete in order.
__device__ inline void cp_async_16(u32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(gmem) : "memory");
}

// The first `bytes` of sixteen, and zeros after them. Nothing is read if these are none.
__device__ inline void cp_async_16_first(u32 smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}

// Sixteen zero bytes unless `inside`; the address must be readable either way.
__device__ inline void cp_async_16_or_zero(u32 smem, const void* gmem, bool inside) {
  cp_async_16_first(smem, gmem, inside ? 16 : 0);
}

// Arrives at the barrier when all copies of this thread so far have landed. Its count has this arrival.
__device__ inline void cp_async_arrive(Mbarrier barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address)
               : "memory");
}

// Asks L2 to fetch the whole 128-byte line.
__device__ inline void cp_async_16_prefetch_128(u32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem), "l"(gmem)
               : "memory");
}

__device__ inline void cp_async_16_or_zero_prefetch_128(u32 smem, const void* gmem, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem),
               "r"(inside ? 16 : 0)
               : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the latest `Pending` groups of this thread have completed.
template <int Pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace fa::ptx

namespace fa {

// TMA: copies boxes of a tensor that a tensor map describes, coordinates innermost first. A load
// reports its bytes to an mbarrier; elements outside the tensor are zero, and count. A store skips
// elements outside the tensor.
struct alignas(64) TensorMap {  // opaque, made by the driver
  u64 words[16];
};

}  // namespace fa

namespace fa::ptx {

__device__ inline void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void tma_load_4d(u32 smem, const TensorMap& map, Mbarrier barrier, int x0, int x1,
                                   int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier.address), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

__device__ inline void tma_load_5d(u32 smem, const TensorMap& map, Mbarrier barrier, int x0, int x1,
                                   int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier.address), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
      : "memory");
}

// Prefetches the box into L2.
__device__ inline void tma_prefetch_4d(const TensorMap& map, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
               "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}

__device__ inline void tma_store_4d(const TensorMap& map, u32 smem, int x0, int x1, int x2,
                                    int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(smem), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all stores of this thread have read their shared memory.
__device__ inline void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until all stores of this thread are complete.
__device__ inline void tma_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes earlier ordinary writes to shared memory visible to TMA and wgmma.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Bulk copies of contiguous bytes, a multiple of 16, between shared and global memory. A load reports
// to an mbarrier; stores and additions complete in groups, as those of tensor maps do (tma.cuh).
__device__ inline void bulk_load(u32 smem, const void* gmem, int bytes, Mbarrier barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem),
      "l"(gmem), "r"(bytes), "r"(barrier.address)
      : "memory");
}

__device__ inline void bulk_store(void* gmem, u32 smem, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem),
               "r"(bytes)
               : "memory");
}

// Adds floats in shared memory to those in global memory, each addition atomic.
__device__ inline void bulk_add_f32(void* gmem, u32 smem, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(gmem),
      "r"(smem), "r"(bytes)
      : "memory");
}

// Waits until all but the latest `Pending` groups of this thread have read their shared memory.
template <int Pending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// setmaxnreg: a warpgroup returns registers to its CTA's pool, or waits until it can take some.
template <int Registers>
__device__ inline void shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ inline void grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Programmatic dependent launch (griddepcontrol): a kernel starts before the previous one has ended.

// The dependent kernel may start when every CTA has executed this or has ended.
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Waits until the previous kernel has ended and its stores are visible.
__device__ inline void wait_for_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace fa::ptx
