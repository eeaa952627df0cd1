# SPDX-License-Identifier: Apache-2.0
"""A small attention kernel for sm_90a with all the machinery of a fast one.

One producer warp fetches tiles from an atomic counter and loads Q, K and V with TMA; two consumer
warpgroups take turns on the tensor cores (named barriers), multiply with wgmma and store O with
TMA, every warp its own sixteen rows. Mistakes are macros, listed in `MUTATIONS`.
"""

from __future__ import annotations

from tests.emulator.hopper_kernels import PRELUDE, wgmma_function

CONSUMERS = 2
ROWS = 64 * CONSUMERS
KEYS = 64
STAGES = 2
THREADS = 128 * (CONSUMERS + 1)

_BODY = r"""
constexpr int kConsumers = 2, kRows = 64 * kConsumers, kKeys = 64, kStages = 2;
constexpr int kPanels = HEAD / 64, kPanelBytes = 64 * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;  // 64 rows of Q, K, V or O
constexpr int kThreads = 128 * (kConsumers + 1);
#define INFINITE __int_as_float(0x7f800000)

#ifdef BF16
DEVICE u32 pack(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#else
DEVICE u32 pack(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif
DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// 128-byte swizzle; `leading` is the distance between panels of a transposed operand
DEVICE u64 descriptor(u32 address, u32 leading) {
  return u64(address >> 4) | u64(leading >> 4) << 16 | u64(STRIDE >> 4) << 32 | 1ull << 62;
}

struct Smem {
  u32 base;
  DEVICE u32 q(int consumer) const { return base + consumer * kTileBytes; }
  DEVICE u32 k(int stage) const { return base + (kConsumers + stage) * kTileBytes + K_SHIFT; }
  DEVICE u32 v(int stage) const {
    return base + (kConsumers + kStages + stage) * kTileBytes + K_SHIFT;
  }
  DEVICE u32 o(int consumer) const {
    return base + (kConsumers + 2 * kStages + consumer) * kTileBytes + K_SHIFT;
  }
  DEVICE u32 barrier(int i) const {
    return base + (2 * kConsumers + 2 * kStages) * kTileBytes + K_SHIFT + 8 * i;
  }
  DEVICE u32 q_full() const { return barrier(0); }
  DEVICE u32 q_empty() const { return barrier(1); }
  DEVICE u32 tile_full() const { return barrier(2); }
  DEVICE u32 tile_empty() const { return barrier(3); }
  DEVICE u32 k_full(int stage) const { return barrier(4 + stage); }
  DEVICE u32 k_empty(int stage) const { return barrier(4 + kStages + stage); }
  DEVICE u32 v_full(int stage) const { return barrier(4 + 2 * kStages + stage); }
  DEVICE u32 v_empty(int stage) const { return barrier(4 + 3 * kStages + stage); }
};

struct Tiles {
  int queries, keys, heads;
  DEVICE int per_head() const { return (queries + kRows - 1) / kRows; }
  DEVICE int count() const { return per_head() * heads; }
  DEVICE int row(int tile) const { return tile % per_head() * kRows; }
  DEVICE int head(int tile) const { return tile / per_head(); }
  DEVICE int blocks() const { return (keys + kKeys - 1) / kKeys; }
};

struct Ring {
  int stage = 0;
  u32 parity = 0;
  DEVICE void advance() {
    if (++stage == kStages) { stage = 0; parity ^= 1; }
  }
};

DEVICE void load_tile(u32 to, const TensorMap* map, u32 bar, int row, int head) {
  for (int panel = 0; panel < kPanels; ++panel)
    tensor_load(to + panel * kPanelBytes, map, bar, panel * 64, row, head);
}

DEVICE void produce(const Smem smem, const Tiles tiles, const TensorMap* q, const TensorMap* k,
                    const TensorMap* v, int* counter, volatile int* slot) {
  Ring ring;
  u32 tile_parity = 0;
  for (;;) {
    const int tile = atomicAdd(counter, 1);
    barrier_wait(smem.tile_empty(), tile_parity ^ 1);
    *slot = tile;
    barrier_arrive(smem.tile_full());
    if (tile >= tiles.count()) return;
    barrier_wait(smem.q_empty(), tile_parity ^ 1);
    tile_parity ^= 1;
    barrier_arrive_expect(smem.q_full(), kConsumers * kTileBytes);
    for (int c = 0; c < kConsumers; ++c)
      load_tile(smem.q(c), q, smem.q_full(), tiles.row(tile) + 64 * c, tiles.head(tile));
    for (int j = 0; j < tiles.blocks(); ++j, ring.advance()) {
      const int s = ring.stage;
#ifndef NO_EMPTY_WAIT
      barrier_wait(smem.k_empty(s), ring.parity ^ EMPTY_PARITY);
#endif
      barrier_arrive_expect(smem.k_full(s), kTileBytes + TX_ERROR);
      load_tile(smem.k(s), k, smem.k_full(s), j * kKeys, tiles.head(tile));
#ifndef NO_EMPTY_WAIT
      barrier_wait(smem.v_empty(s), ring.parity ^ 1);
#endif
      barrier_arrive_expect(smem.v_full(s), kTileBytes);
      load_tile(smem.v(s), v, smem.v_full(s), j * kKeys, tiles.head(tile));
    }
  }
}

struct Softmax {
  float max[2] = {-INFINITE, -INFINITE};
  float sum[2] = {0.f, 0.f};

  // s becomes probabilities, packed in p; o is rescaled to the new maximum
  DEVICE void step(float* s, u32* p, float* o, float scale) {
    float grown[2] = {max[0], max[1]}, rescale[2];
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) grown[i >> 1 & 1] = fmaxf(grown[i >> 1 & 1], s[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      grown[h] = quad_max(grown[h]);
      rescale[h] = exp2_fast((max[h] - grown[h]) * scale);
      max[h] = grown[h];
      sum[h] *= rescale[h];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      s[i] = exp2_fast(s[i] * scale - max[i >> 1 & 1] * scale);
      sum[i >> 1 & 1] += s[i];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) o[i] *= rescale[i >> 1 & 1];
  }
};

DEVICE void store_output(const Smem smem, int c, const float* o, const float* norm,
                         const TensorMap* map, int row, int head) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int local = 16 * warp + lane % 16;
#ifndef NO_STORE_WAIT
  if (lane == 0) bulk_wait_read<0>();
  __syncwarp();
#endif
#pragma unroll
  for (int pair = 0; pair < HEAD / 16; ++pair) {
    const int chunk = 2 * pair + lane / 16;
    const u32 place = local * 128 + ((chunk % 8 ^ local % 8) << 4);
    u32 r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = pack(o[8 * pair + 2 * i] * norm[i & 1], o[8 * pair + 2 * i + 1] * norm[i & 1]);
    store_matrices(smem.o(c) + chunk / 8 * kPanelBytes + place, r[0], r[1], r[2], r[3]);
  }
#ifndef NO_PROXY_FENCE
  fence_proxy();
#endif
  __syncwarp();
  if (lane == 0) {
    for (int panel = 0; panel < kPanels; ++panel)
      tensor_store(map, smem.o(c) + panel * kPanelBytes + warp * 2048, panel * 64,
                   row + 16 * warp, head);
#ifndef NO_STORE_COMMIT
    bulk_commit();
#endif
  }
}

DEVICE void mask_tail(float* s, int first_key, int keys) {
  if (first_key + kKeys <= keys) return;
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (first_key + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= keys) s[i] = -INFINITE;
}

DEVICE void consume(const Smem smem, const Tiles tiles, int c, const TensorMap* out, float* lse,
                    float scale, volatile int* slot) {
  const bool speaker = threadIdx.x % 128 == 0;
  Ring ring;
  u32 tile_parity = 0;
  if (c == 1) named_arrive<256>(1);
  for (;;) {
    barrier_wait(smem.tile_full(), tile_parity);
    const int tile = *slot;
    barrier_arrive(smem.tile_empty());
    if (tile >= tiles.count()) break;
    barrier_wait(smem.q_full(), tile_parity);
    tile_parity ^= 1;
    float o[HEAD / 2];
#pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) o[i] = 0.f;
    Softmax softmax;
    for (int j = 0; j < tiles.blocks(); ++j, ring.advance()) {
      float s[kKeys / 2];
      u32 p[kKeys / 4];
#ifndef NO_FULL_WAIT
      barrier_wait(smem.k_full(ring.stage), ring.parity);
#endif
      named_sync<256>(1 + c);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < HEAD / 16; ++d) {
        const u32 within = d / 4 * kPanelBytes + d % 4 * 32;
        multiply_qk(s, descriptor(smem.q(c) + within, 16),
                    descriptor(smem.k(ring.stage) + within, 16), d > 0);
      }
#ifndef NO_WGMMA_COMMIT
      wgmma_commit();
#endif
#ifdef UNBALANCED_NAMED_BARRIER
      if (c == 0 || j + 1 < tiles.blocks())
#endif
      named_arrive<256>(2 - c);
#ifndef READ_IN_FLIGHT
      wgmma_wait<0>();
#endif
      if (speaker) barrier_arrive(smem.k_empty(ring.stage));
#ifndef UNMASKED_TAIL
      mask_tail(s, j * kKeys, tiles.keys);
#endif
      softmax.step(s, p, o, scale);
      barrier_wait(smem.v_full(ring.stage), ring.parity);
      wgmma_fence();
#pragma unroll
      for (int key = 0; key < kKeys / 16; ++key)
        multiply_pv(o, p + 4 * key, descriptor(smem.v(ring.stage) + key * 2048, kPanelBytes), 1);
      wgmma_commit();
#ifdef EARLY_RELEASE
      if (speaker) barrier_arrive(smem.v_empty(ring.stage));
      wgmma_wait<0>();
#else
      wgmma_wait<0>();
      if (speaker) barrier_arrive_many(smem.v_empty(ring.stage), EMPTY_ARRIVALS);
#endif
    }
    if (speaker) barrier_arrive(smem.q_empty());
    const int row = tiles.row(tile) + 64 * c;
    float norm[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = quad_sum(softmax.sum[h]);
      norm[h] = 1.f / total;
      const int r = row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
      if (threadIdx.x % 4 == 0 && r < tiles.queries)
        lse[tiles.head(tile) * tiles.queries + r] =
            (softmax.max[h] * scale + __log2f(total)) * 0.6931471805599453f;
    }
    store_output(smem, c, o, norm, out, row, tiles.head(tile));
  }
  if (c == 0) named_sync<256>(1);
#ifndef NO_FINAL_STORE_WAIT
  if (threadIdx.x % 32 == 0) bulk_wait<0>();
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
          const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, float* lse,
          int* counters, int queries, int keys, int heads, float scale) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  __shared__ int slot;
  const Smem smem{shared_address(bytes)};
  const Tiles tiles{queries, keys, heads};
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    barrier_init(smem.q_full(), 1);
    barrier_init(smem.q_empty(), kConsumers);
    barrier_init(smem.tile_full(), 1);
    barrier_init(smem.tile_empty(), 128 * kConsumers);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(smem.k_full(s), 1);
      barrier_init(smem.v_full(s), 1);
      barrier_init(smem.k_empty(s), kConsumers);
      barrier_init(smem.v_empty(s), kConsumers);
    }
    barrier_init_done();
  }
#ifndef NO_INIT_SYNC
  __syncthreads();
#endif
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < 32 && elect_one()) {
      produce(smem, tiles, &q, &k, &v, counters, &slot);
#ifndef NO_COUNTER_RESET
      if (atomicAdd(counters + 1, 1) == gridDim.x - 1) {
        atomicExch(counters, 0);
        atomicExch(counters + 1, 0);
      }
#endif
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume(smem, tiles, group - 1, &o, lse, scale, &slot);
  }
}
"""

_DEFAULTS = {
    "STRIDE": "1024",
    "K_SHIFT": "0",
    "EMPTY_PARITY": "1",
    "TX_ERROR": "0",
    "EMPTY_ARRIVALS": "1",
}


def attention_source(head: int = 64, dtype: str = "f16") -> str:
    """The kernel for one head dimension (a multiple of 64) and type ("f16", "bf16")."""
    defaults = "".join(
        f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in _DEFAULTS.items()
    )
    return "".join(
        (
            f"#define HEAD {head}\n",
            "#define BF16\n" if dtype == "bf16" else "",
            defaults,
            PRELUDE,
            wgmma_function("multiply_qk", KEYS, dtype=dtype),
            wgmma_function("multiply_pv", head, dtype=dtype, registers=True, trans_b=True),
            _BODY,
        )
    )


def attention_smem(head: int = 64) -> int:
    """Dynamic shared memory of the kernel in bytes."""
    return (2 * CONSUMERS + 2 * STAGES) * 64 * head * 2 + 256
