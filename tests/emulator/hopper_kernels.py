# SPDX-License-Identifier: Apache-2.0
"""CUDA sources for sm_90a: wrappers of its instructions, one product, one copy of each kind.

Every mistake the emulator must find is a switch: `compile_ptx(SOURCE, "NO_PROXY_FENCE")`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flash_attention.compile.nvrtc import compile_source
from ptx_emulator import GlobalMemory, RunResult, load_program, run

ARGUMENTS = ("-arch=sm_90a", "-std=c++20", "-lineinfo", "-no-cache")


@cache
def compile_ptx(source: str, *defines: str) -> str:
    """The PTX of a source with macros ("NAME" or "NAME=value") defined."""
    arguments = (*ARGUMENTS, *(f"-D{define}" for define in defines))
    return compile_source(source, source_name="hopper.cu", arguments=arguments).ptx


def launch(
    source: str,
    memory: GlobalMemory,
    args: list[Any],
    *defines: str,
    block: int,
    ctas: int = 1,
    **options: Any,
) -> RunResult:
    program = load_program(compile_ptx(source, *defines))
    return run(program, memory, grid=(ctas, 1, 1), block=block, args=args, **options)


def kinds(result: RunResult) -> list[str]:
    return sorted({finding.kind for finding in result.findings})


PRELUDE = r"""
using u32 = unsigned int;
using u64 = unsigned long long;
#define DEVICE __device__ __forceinline__

struct alignas(64) TensorMap { u64 words[16]; };

DEVICE u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// mbarriers
DEVICE void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
DEVICE void barrier_init_done() {
#ifdef PROXY_INIT_FENCE
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(NO_INIT_FENCE)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEVICE void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEVICE void barrier_arrive_many(u32 bar, u32 count) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;"
               ::"r"(bar), "r"(count) : "memory");
}
DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.expect_tx.shared::cta.b64 [%0], %1;"
               ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar), "r"(parity) : "memory");
}
DEVICE bool barrier_test(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done;
}

// named barriers, fences, votes
template <int Threads> DEVICE void named_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}
template <int Threads> DEVICE void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}
DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected;
}

// bulk copies
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int Pending> DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}
template <int Pending> DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// warpgroup products
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
"""


def wgmma_source(
    n: int,
    *,
    dtype: str = "f16",
    registers: bool = False,
    trans_a: bool = False,
    trans_b: bool = False,
    sums: str = "f32",
    signs: tuple[int, int] = (1, 1),
) -> str:
    """One product of one warpgroup, 32 bytes deep; descriptors count from the start of shared
    memory.

    A is a descriptor, or with `registers` four words a thread; B is a descriptor. `sums` of f16
    are two in a register. `signs` are those of A and B.
    """
    count = n // 4 if sums == "f16" else n // 2
    c_type, constraint = ("float", "f") if sums == "f32" else ("u32", "r")
    accumulators = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{constraint}"(d[{i}])' for i in range(count))
    majors: tuple[bool, ...]
    if registers:
        a_text = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        a_inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
        parameter, majors, used = "const u32* a", (trans_b,), 4
    else:
        a_text, a_inputs = f"%{count}", '"l"(a)'
        parameter, majors, used = "u64 a", (trans_a, trans_b), 1
    depth, flags = 32, "" if sums == "s32" else f", {signs[0]}, {signs[1]}"
    if dtype == "tf32":
        depth = 8
    elif dtype in ("f16", "bf16"):  # no others are transposed
        depth, flags = 16, flags + "".join(f", {int(major)}" for major in majors)
    b_text, scale_text = f"%{count + used}", f"%{count + used + 1}"
    return f"""{PRELUDE}
DEVICE void multiply({c_type}* d, {parameter}, u64 b, int accumulate) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {scale_text}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{sums}.{dtype}.{dtype} "
      "{{{accumulators}}}, {a_text}, {b_text}, p{flags};\\n}}"
      : {outputs}
      : {a_inputs}, "l"(b), "r"(accumulate));
}}
constexpr int COUNT = {count};
using Sum = {c_type};
#define A {"fragment" if registers else "a + start"}
{_WGMMA}"""


_WGMMA = r"""
extern "C" __global__ void __launch_bounds__(128)
product(const uint4* image, int chunks, u64 a, u64 b, const u32* fragments, const Sum* before,
        Sum* after, int accumulate) {
  extern __shared__ __align__(1024) uint4 smem[];
  for (int i = threadIdx.x; i < chunks; i += 128) smem[i] = image[i];
#ifndef NO_PROXY_FENCE
  fence_proxy();
#endif
  __syncthreads();
  const u64 start = shared_address(smem) >> 4;
  u32 fragment[4];
  Sum d[COUNT];
  for (int i = 0; i < 4; ++i) fragment[i] = fragments[i * 128 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) d[i] = before[i * 128 + threadIdx.x];
#ifndef NO_WGMMA_FENCE
  wgmma_fence();
#endif
  multiply(d, A, b + start, accumulate);
  wgmma_commit();
#ifndef READ_IN_FLIGHT
  wgmma_wait<0>();
#endif
#pragma unroll
  for (int i = 0; i < COUNT; ++i) after[i * 128 + threadIdx.x] = d[i];
}
"""


def tensor_copy_source(rank: int) -> str:
    """A box into shared memory at `offset`, its image to `dump`, and out again elsewhere."""
    load = ", ".join(f"%{3 + i}" for i in range(rank))
    store = ", ".join(f"%{2 + i}" for i in range(rank))
    load_at = ", ".join(f'"r"(load_at.c[{i}])' for i in range(rank))
    store_at = ", ".join(f'"r"(store_at.c[{i}])' for i in range(rank))
    return f"""{PRELUDE}
struct Coords {{ int c[5]; }};
DEVICE void load_box(u32 to, const TensorMap* map, u32 bar, const Coords& load_at) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes [%0], [%1, {{{load}}}], [%2];"
               ::"r"(to), "l"(map), "r"(bar), {load_at} : "memory");
}}
DEVICE void store_box(const TensorMap* map, u32 from, const Coords& store_at) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
               " [%0, {{{store}}}], [%1];" ::"l"(map), "r"(from), {store_at} : "memory");
}}
{_TENSOR_COPY}"""


_TENSOR_COPY = r"""
extern "C" __global__ void __launch_bounds__(32)
tensor_copy(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
            const __grid_constant__ Coords load_at, const __grid_constant__ Coords store_at,
            u32 offset, u32 bytes, u32 expected, u32* dump) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ u64 full;
  const u32 bar = shared_address(&full), box = shared_address(smem) + offset;
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef EXPECT_APART
    barrier_expect(bar, expected);
    load_box(box, &from, bar, load_at);
    barrier_arrive(bar);
#else
    barrier_arrive_expect(bar, expected);
    load_box(box, &from, bar, load_at);
#endif
  }
#ifndef NO_FULL_WAIT
  barrier_wait(bar, 0);
#endif
  for (u32 i = threadIdx.x; i < bytes / 4; i += 32)
    dump[i] = *reinterpret_cast<u32*>(smem + offset + 4 * i);
#ifdef WRITE_BOX
  for (u32 i = threadIdx.x; i < bytes / 4; i += 32)
    *reinterpret_cast<volatile u32*>(smem + offset + 4 * i) = dump[i] ^ 0x00010001u;
#ifndef NO_PROXY_FENCE
  fence_proxy();
#endif
#endif
  __syncwarp();
  if (threadIdx.x == 0) {
    store_box(&to, box, store_at);
    bulk_commit();
#ifdef READ_WAIT
    bulk_wait_read<0>();
#elif !defined(NO_STORE_WAIT)
    bulk_wait<0>();
#endif
#ifdef OVERWRITE_BOX
    *reinterpret_cast<volatile u32*>(smem + offset) = 0;
#endif
  }
}
"""


BULK_COPY = (
    PRELUDE
    + r"""
DEVICE void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
DEVICE void bulk_store(void* to, u32 from, u32 bytes) {
#ifdef ADD
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
#endif
               ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// bytes into shared memory at `offset`, their image to `dump`, and out again, or added, to `to`
extern "C" __global__ void __launch_bounds__(32)
bulk_copy(const unsigned char* from, unsigned char* to, u32 offset, u32 bytes, u32 expected,
          u32* dump) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ u64 full;
  const u32 bar = shared_address(&full), box = shared_address(smem) + offset;
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_arrive_expect(bar, expected);
    bulk_load(box, from, bytes, bar);
  }
#ifndef NO_FULL_WAIT
  barrier_wait(bar, 0);
#endif
  if (blockIdx.x == 0)
    for (u32 i = threadIdx.x; i < bytes / 4; i += 32)
      dump[i] = *reinterpret_cast<u32*>(smem + offset + 4 * i);
#ifdef WRITE_BOX
  for (u32 i = threadIdx.x; i < bytes / 4; i += 32) {
    volatile float* const x = reinterpret_cast<volatile float*>(smem + offset + 4 * i);
    *x = *x + 1;
  }
#ifndef NO_PROXY_FENCE
  fence_proxy();
#endif
#endif
  __syncwarp();
  if (threadIdx.x == 0) {
    bulk_store(to, box, bytes);
    bulk_commit();
#ifdef READ_WAIT
    bulk_wait_read<0>();
#elif !defined(NO_STORE_WAIT)
    bulk_wait<0>();
#endif
#ifdef OVERWRITE_BOX
    *reinterpret_cast<volatile u32*>(smem + offset) = 0;
#endif
  }
}
"""
)
