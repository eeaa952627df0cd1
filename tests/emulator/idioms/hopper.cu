// SPDX-License-Identifier: Apache-2.0
// arch: sm_90a
// Clusters, mbarriers and bulk copies.

#include "hopper.cuh"

// run: <<<2, 64>>>(out=Empty(128), values=ramp(128))
// gives: (out == 2 * np.arange(128)).all()
extern "C" __global__ void bulk_load(float* out, const float* in) {
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
    load(tile, in + 64 * blockIdx.x, 256, &full);
  }
  wait(&full, 0);
  out[64 * blockIdx.x + t] = 2 * tile[t];
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(512))
// gives: (out == np.arange(512).reshape(8, 64).sum(0)).all()
extern "C" __global__ void ring_with_a_producer_warp(float* out, const float* in) {
  __shared__ alignas(128) float ring[2][64];
  __shared__ u64 full[2], empty[2];
  int t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], 32);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    for (int i = 0; i < 8; ++i) {
      if (i >= 2) wait(&empty[i % 2], (i / 2 + 1) % 2);
      expect(&full[i % 2], 256);
      load(ring[i % 2], in + 64 * i, 256, &full[i % 2]);
    }
  } else if (t >= 32) {
    float low = 0, high = 0;
    for (int i = 0; i < 8; ++i) {
      wait(&full[i % 2], i / 2 % 2);
      low += ring[i % 2][t - 32];
      high += ring[i % 2][t];
      arrive(&empty[i % 2]);
    }
    out[t - 32] = low;
    out[t] = high;
  }
}

// run: <<<1, 64>>>(out=Empty(256), values=ramp(256))
// gives: (out == 3 * np.arange(256)).all()
extern "C" __global__ void bulk_stores_of_two_tiles(float* out, const float* in) {
  __shared__ alignas(128) float tile[2][64];
  int t = threadIdx.x;
  for (int i = 0; i < 4; ++i) {
    if (t == 0 && i >= 2) wait_read<1>();
    __syncthreads();
    tile[i % 2][t] = 3 * in[64 * i + t];
    fence_proxy();
    __syncthreads();
    if (t == 0) {
      store(out + 64 * i, tile[i % 2], 256);
      commit();
    }
  }
  if (t == 0) wait_read<0>();
}

// run: <<<1, 64>>>(out=Empty(64), copy=Empty(64))
// gives: (copy == np.arange(64)).all()
extern "C" __global__ void bulk_store_read_back(float* out, float* copy) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  fence_proxy();
  __syncthreads();
  if (t == 0) {
    store(out, tile, 256);
    commit();
    wait_stores();
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  copy[t] = out[t];
}

// run: <<<4, 32, 0, 2>>>(out=Empty(128))
// gives: (out.reshape(4, 32)[:, 0] == [1, 0, 3, 2]).all()
extern "C" __global__ void neighbours_memory_in_a_cluster(float* out) {
  __shared__ float data[32];
  data[threadIdx.x] = blockIdx.x;
  cluster_sync();
  float other = load_from(&data[threadIdx.x], rank() ^ 1);
  cluster_sync();
  out[blockIdx.x * 32 + threadIdx.x] = other;
}

// run: <<<2, 32, 0, 2>>>(out=Empty(64))
// gives: (out == np.r_[32:64, 0:32]).all()
extern "C" __global__ void stores_to_a_neighbour_behind_its_mbarrier(float* out) {
  __shared__ float data[32];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 32);
    fence_init();
  }
  cluster_sync();
  u32 other = rank() ^ 1;
  store_to(&data[t], other, blockIdx.x * 32 + t);
  arrive_at(&full, other);
  wait(&full, 0);
  out[blockIdx.x * 32 + t] = data[t];
  cluster_sync();
}

// run: <<<2, 32, 0, 2>>>(out=Empty(128), values=ramp(64))
// gives: (out == np.tile(np.arange(64), 2)).all()
extern "C" __global__ void multicast_to_a_cluster(float* out, const float* in) {
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
    if (rank() == 0) multicast(tile, in, 256, &full, 3);
  }
  wait(&full, 0);
  for (int i = t; i < 64; i += 32) out[64 * blockIdx.x + i] = tile[i];
  cluster_sync();
}

// run: <<<2, 32, 0, 2>>>(out=ints(2))
// gives: (out == [64, 0]).all()
extern "C" __global__ void atomics_in_the_memory_of_a_cluster(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  cluster_sync();
  asm volatile("red.shared::cluster.add.s32 [%0], 1;" ::"r"(in_cta(at(&sum), 0)) : "memory");
  cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// run: <<<1, 96>>>(out=Empty(64))
// gives: (out == np.arange(64)).all()
extern "C" __global__ void an_mbarrier_of_threads(float* out) {
  __shared__ float data[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 64);
  __syncthreads();
  if (t < 64) {
    data[t] = t;
    arrive(&full);
  } else {
    wait(&full, 0);
    out[t - 64] = data[t - 64];
    out[t - 32] = data[t - 32];
  }
}

// run: <<<1, 32>>>(sum=floats(64), values=ramp(64))
// gives: (sum == 2 * np.arange(64)).all()
extern "C" __global__ void bulk_additions(float* sum, const float* in) {
  __shared__ alignas(128) float tile[64];
  int t = threadIdx.x;
  for (int i = t; i < 64; i += 32) tile[i] = in[i];
  fence_proxy();
  __syncwarp();
  if (t == 0) {
    for (int i = 0; i < 2; ++i)
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                       sum),
                   "r"(at(tile)), "r"(256)
                   : "memory");
    commit();
    wait_stores();
  }
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(64))
// gives: (out == np.arange(64)).all()
extern "C" __global__ void small_copies_arrive_at_an_mbarrier(float* out, const float* in) {
  __shared__ alignas(16) float tile[64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) init(&full, 64);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at(&tile[t])), "l"(in + t) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at(&full)) : "memory");
  wait(&full, 0);
  out[t] = tile[63 - t] * 0 + tile[t];
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
// gives: np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)
extern "C" __global__ void product_of_tiles(float* out, const __grid_constant__ TensorMap a,
                                            const __grid_constant__ TensorMap b) {
  __shared__ alignas(1024) unsigned short rows[64 * 64], columns[8 * 64];
  __shared__ u64 full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    expect(&full, 64 * 128 + 8 * 128);
    load_box(rows, &a, 0, 0, &full);
    load_box(columns, &b, 0, 0, &full);
  }
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  for (int k = 0; k < 4; ++k)
    multiply(d, descriptor(rows, 16, 1024, 1) + 2 * k, descriptor(columns, 16, 1024, 1) + 2 * k);
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}
