# SPDX-License-Identifier: Apache-2.0
"""Tiny CUDA sources for sm_90a: mbarriers, named barriers, stmatrix, votes, a tile scheduler."""

from __future__ import annotations

from tests.emulator.hopper_kernels import PRELUDE

PING_PONG = (
    PRELUDE
    + r"""
#ifndef PONG_COUNT
#define PONG_COUNT 4
#endif
#ifndef ARRIVALS
#define ARRIVALS 4
#endif
#ifndef PONG_PARITY
#define PONG_PARITY round
#endif
extern "C" __global__ void __launch_bounds__(64) ping_pong(int rounds, int* out) {
  __shared__ int ball[32];
  __shared__ u64 bars[2];
  const u32 ping = shared_address(bars), pong = shared_address(bars + 1);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
#ifndef NO_INIT
    barrier_init(ping, 32);
#endif
    barrier_init(pong, PONG_COUNT);
  }
#ifndef NO_INIT_SYNC
  __syncthreads();
#endif
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 32) {
      ball[lane] = (round ? ball[lane] : lane) * 2;
      barrier_arrive(ping);
      barrier_wait(pong, PONG_PARITY & 1);
    } else {
#ifndef NO_PING_WAIT
#ifdef TEST_WAIT
      while (!barrier_test(ping, round & 1)) {}
#else
      barrier_wait(ping, round & 1);
#endif
#endif
      ball[31 - lane] += 1;
      __syncwarp();
      if (lane == 0) barrier_arrive_many(pong, ARRIVALS);
    }
  }
  if (threadIdx.x < 32) out[lane] = ball[lane];
}
"""
)

NAMED_BARRIERS = (
    PRELUDE
    + r"""
// warps 0 and 1 write, warps 2 and 3 add what they wrote
extern "C" __global__ void __launch_bounds__(128) named_barriers(int rounds, int* out) {
  __shared__ int box[64];
  const int lane = threadIdx.x % 64;
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 64) {
      if (round) named_sync<128>(2);
      box[lane] = lane * (round + 1);
#ifdef MISSING_ARRIVE
      if (round + 1 < rounds || threadIdx.x < 32)
#endif
#ifdef ARRIVE_ELSEWHERE
      named_arrive<128>(round + 1 == rounds ? 3 : 1);
#else
      named_arrive<128>(1);
#endif
    } else {
#ifdef READ_EARLY
      sum += box[63 - lane];
      named_sync<128>(1);
#else
      named_sync<128>(1);
      sum += box[63 - lane];
#endif
      if (round + 1 < rounds) named_arrive<128>(2);
    }
  }
  if (threadIdx.x >= 64) out[lane] = sum;
}
"""
)

STORE_MATRICES = (
    PRELUDE
    + r"""
#ifndef COUNT
#define COUNT 4
#endif
#ifdef TRANS
#define FORM ".trans"
#else
#define FORM ""
#endif
extern "C" __global__ void __launch_bounds__(32) store_matrix(const u32* values, u32* out) {
  __shared__ __align__(16) u32 tile[COUNT * 32];
  const u32 lane = threadIdx.x, to = shared_address(tile) + lane % (8 * COUNT) * 16;
  u32 r[4];
  for (int i = 0; i < COUNT; ++i) r[i] = values[i * 32 + lane];
#if COUNT == 1
  asm volatile("stmatrix.sync.aligned.m8n8.x1" FORM ".shared.b16 [%0], {%1};"
               ::"r"(to), "r"(r[0]) : "memory");
#elif COUNT == 2
  asm volatile("stmatrix.sync.aligned.m8n8.x2" FORM ".shared.b16 [%0], {%1, %2};"
               ::"r"(to), "r"(r[0]), "r"(r[1]) : "memory");
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4" FORM ".shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#endif
#ifndef NO_WARP_SYNC
  __syncwarp();
#endif
  for (int i = 0; i < COUNT; ++i) out[i * 32 + lane] = tile[i * 32 + lane];
}
"""
)

VOTES = (
    PRELUDE
    + r"""
extern "C" __global__ void __launch_bounds__(64) votes(const int* values, int* out) {
  const int value = values[threadIdx.x];
  out[threadIdx.x] = elect_one();
  out[64 + threadIdx.x] = __any_sync(~0u, value > 40);
  out[128 + threadIdx.x] = __all_sync(~0u, value < 60);
  out[192 + threadIdx.x] = __ballot_sync(~0u, value % 3 == 0);
}
"""
)

TILE_SCHEDULER = (
    PRELUDE
    + r"""
// every tile is taken once, by whichever CTA asks first
extern "C" __global__ void __launch_bounds__(64)
tile_scheduler(int* counters, int tiles, int* owner, int* taken) {
  __shared__ int slot;
  for (;;) {
    if (threadIdx.x == 0) slot = atomicAdd(counters, 1);
    __syncthreads();
    const int tile = slot;
#ifndef NO_SECOND_SYNC
    __syncthreads();
#endif
    if (tile >= tiles) break;
    if (threadIdx.x == 0) owner[tile] = blockIdx.x + 1;
    if (threadIdx.x == 32) atomicAdd(taken, 1);
  }
#ifndef NO_COUNTER_RESET
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) {
    atomicExch(counters, 0);
    atomicExch(counters + 1, 0);
  }
#endif
}
"""
)
