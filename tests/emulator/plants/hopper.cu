// SPDX-License-Identifier: Apache-2.0
// arch: sm_90a
// Clusters, mbarriers and bulk copies with a step too few, too early or of the wrong size.

#include "hopper.cuh"

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void init_without_a_fence(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 1);
  __syncthreads();
  if (t == 0) {
    expect(&full, 256);
    load(tile, values, 256, &full);  // <- missing-proxy-fence
  }
  wait(&full, 0);
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void init_without_a_barrier(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 256);
    load(tile, values, 256, &full);
  }
  wait(&full, 0);  // <- race
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void too_few_bytes_expected(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 128);
    load(tile, values, 256, &full);
  }
  wait(&full, 0);  // <- deadlock
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void too_many_bytes_expected(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 512);
    load(tile, values, 256, &full);
  }
  wait(&full, 0);  // <- deadlock
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void wait_for_the_other_parity(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 256);
    load(tile, values, 256, &full);
  }
  wait(&full, 1);
  out[t] = tile[t];  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void read_without_a_wait(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 256);
    load(tile, values, 256, &full);
  }
  __syncthreads();
  out[t] = tile[t];  // <- race
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void bulk_store_without_a_fence(float* out) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  __syncthreads();
  if (t == 0) {
    store(out, tile, 256);  // <- missing-proxy-fence
    commit();
    wait_stores();
  }
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void bulk_store_without_a_wait(float* out) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  fence_proxy();
  __syncthreads();
  if (t == 0) {
    store(out, tile, 256);  // <- bulk-store-unwaited
    commit();
  }
}

// run: <<<1, 64>>>(out=Empty(128))
extern "C" __global__ void tile_reused_while_it_is_stored(float* out) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    tile[t] = t + i;  // <- race
    fence_proxy();
    __syncthreads();
    if (t == 0) {
      store(out + 64 * i, tile, 256);
      commit();
    }
    __syncthreads();
  }
  if (t == 0) wait_stores();
}

// run: <<<1, 64>>>(out=Empty(64), copy=Empty(64))
extern "C" __global__ void bulk_store_read_back_too_early(float* out, float* copy) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  fence_proxy();
  __syncthreads();
  if (t == 0) {
    store(out, tile, 256);
    commit();
    wait_read<0>();
  }
  __syncthreads();
  copy[t] = out[t];  // <- race
}

// run: <<<1, 64>>>(out=floats(64), copy=Empty(64))
extern "C" __global__ void bulk_store_over_old_data_read_back_too_early(float* out, float* copy) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  fence_proxy();
  __syncthreads();
  if (t == 0) {
    store(out, tile, 256);
    commit();
    wait_read<0>();
  }
  __syncthreads();
  copy[t] = out[t];  // <- race
}

// run: <<<1, 96>>>(out=Empty(64))
extern "C" __global__ void too_few_arrivals(float* out) {
  __shared__ float data[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 65);
  __syncthreads();
  if (t < 64) {
    data[t] = t;
    arrive(&full);
  } else {
    wait(&full, 0);  // <- deadlock
    out[t - 64] = data[t - 64];
  }
}

// run: <<<1, 96>>>(out=Empty(64))
extern "C" __global__ void fewer_arrivals_expected_than_come(float* out) {
  __shared__ float data[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 32);
  __syncthreads();
  if (t < 64) {
    data[t] = t;
    arrive(&full);
  } else {
    wait(&full, 0);  // <- deadlock
    out[t - 64] = data[t - 64];
  }
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
extern "C" __global__ void arrival_beside_an_open_copy(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 256);
    load(tile, values, 256, &full);
    arrive(&full);  // <- mbarrier-overflow
  }
  wait(&full, 0);
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void data_over_an_mbarrier(float* out) {
  __shared__ alignas(16) u64 words[32];
  int t = threadIdx.x;
  if (t == 0) init(&words[4], 1);
  __syncthreads();
  ((float*)words)[t] = t;  // <- mbarrier-overwritten
  __syncthreads();
  out[t] = ((float*)words)[t];
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void mbarrier_initialised_twice(float* out) {
  __shared__ u64 full;
  int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    if (t == 0) init(&full, 64);  // <- mbarrier-reinitialised
    __syncthreads();
    arrive(&full);
    wait(&full, 0);
    __syncthreads();
  }
  out[t] = 1;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void mbarrier_nobody_initialised(float* out) {
  __shared__ u64 full;
  arrive(&full);  // <- mbarrier-uninitialised
  out[threadIdx.x] = 1;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void wait_that_is_tried_once(float* out) {
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 64);
  __syncthreads();
  arrive(&full);
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%0], 0; }" ::"r"(at(&full)));  // <- mbarrier-untested
  out[t] = 1;
}

// run: <<<2, 32, 0, 2>>>(out=Empty(64))
extern "C" __global__ void neighbours_memory_without_a_barrier(float* out) {
  __shared__ float data[32];
  data[threadIdx.x] = blockIdx.x;
  __syncthreads();
  float other = load_from(&data[threadIdx.x], rank() ^ 1);  // <- race
  cluster_sync();
  out[blockIdx.x * 32 + threadIdx.x] = other;
}

// run: <<<2, 32, 0, 2>>>(out=Empty(64))
extern "C" __global__ void neighbour_may_have_ended(float* out) {
  __shared__ float data[32];
  data[threadIdx.x] = blockIdx.x;
  cluster_sync();
  out[blockIdx.x * 32 + threadIdx.x] = load_from(&data[threadIdx.x], rank() ^ 1);  // <- cluster-exit
}

// run: <<<2, 32, 0, 2>>>(out=Empty(64))
extern "C" __global__ void stores_to_a_neighbour_without_order(float* out) {
  __shared__ float data[32];
  int t = threadIdx.x;
  cluster_sync();
  store_to(&data[t], rank() ^ 1, t);
  __syncthreads();
  out[blockIdx.x * 32 + t] = data[t];  // <- race
  cluster_sync();
}

// run: <<<2, 32, 0, 2>>>(out=Empty(128), values=ramp(64))
extern "C" __global__ void multicast_to_a_cta_too_many(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  cluster_sync();
  if (t == 0) {
    expect(&full, 256);
    if (rank() == 0) multicast(tile, values, 256, &full, 7);  // <- tma-coordinates
  }
  wait(&full, 0);
  for (int i = t; i < 64; i += 32) out[64 * blockIdx.x + i] = tile[i];
  cluster_sync();
}

// run: <<<2, 32, 0, 2>>>(out=Empty(128), values=ramp(64))
extern "C" __global__ void multicast_that_one_cta_expects(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  cluster_sync();
  if (t == 0 && rank() == 0) {
    expect(&full, 256);
    multicast(tile, values, 256, &full, 3);
  }
  wait(&full, 0);  // <- deadlock
  for (int i = t; i < 64; i += 32) out[64 * blockIdx.x + i] = tile[i];
  cluster_sync();
}

// run: <<<2, 32, 0, 2>>>(out=Empty(128), values=ramp(64))
extern "C" __global__ void multicast_before_the_neighbour_is_ready(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 256);
    if (rank() == 0) multicast(tile, values, 256, &full, 3);  // <- race
  }
  wait(&full, 0);
  for (int i = t; i < 64; i += 32) out[64 * blockIdx.x + i] = tile[i];
  cluster_sync();
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(80))
extern "C" __global__ void bulk_load_from_an_odd_address(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 256);
    load(tile, values + 1, 256, &full);  // <- tma-alignment
  }
  __syncthreads();
  wait(&full, 0);
  out[t] = tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(80))
extern "C" __global__ void bulk_load_of_an_odd_size(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 252);
    load(tile, values, 252, &full);  // <- tma-alignment
  }
  __syncthreads();
  wait(&full, 0);
  out[t] = t < 60 ? tile[t] : 0;
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(512))
extern "C" __global__ void stage_released_before_it_is_read(float* out, const float* values) {
  __shared__ alignas(128) float ring[2][64];
  __shared__ u64 full[2], empty[2];
  int t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], 32);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      if (i >= 2) wait(&empty[i % 2], (i / 2 + 1) % 2);
      expect(&full[i % 2], 256);
      load(ring[i % 2], values + 64 * i, 256, &full[i % 2]);  // <- race
    }
  } else if (t >= 32) {
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      wait(&full[i % 2], i / 2 % 2);
      arrive(&empty[i % 2]);
      sum += ring[i % 2][t - 32];
    }
    out[t - 32] = sum;
  }
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(512))
extern "C" __global__ void producer_that_waits_for_nobody(float* out, const float* values) {
  __shared__ alignas(128) float ring[2][64];
  __shared__ u64 full[2];
  int t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (i >= 2) wait(&full[i % 2], 0);
      expect(&full[i % 2], 256);
      load(ring[i % 2], values + 64 * i, 256, &full[i % 2]);  // <- race
    }
  } else if (t >= 32) {
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      wait(&full[i % 2], i / 2 % 2);
      sum += ring[i % 2][t - 32];
    }
    out[t - 32] = sum;
  }
}

// run: <<<1, 32>>>(out=Empty(32), values=ramp(64))
extern "C" __global__ void bulk_load_nobody_waits_for(float* out, const float* values) {
  __shared__ alignas(128) float tile[64];
  __shared__ u64 full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 256);
    load(tile, values, 256, &full);  // <- bulk-load-unwaited
  }
  out[threadIdx.x] = 1;
}

// run: <<<1, 32>>>(out=Empty(64))
extern "C" __global__ void one_lane_stores_what_others_wrote(float* out) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  tile[t + 32] = t;
  fence_proxy();
  if (t == 0) {
    store(out, tile, 256);  // <- intra-warp-race
    commit();
    wait_stores();
  }
}
