// SPDX-License-Identifier: Apache-2.0
// arch: sm_90a
// Tensor copies and products of a warpgroup whose descriptors, fences or waits are wrong.

#include "hopper.cuh"

#define TILES                                                                    \
  __shared__ alignas(1024) unsigned short rows[64 * 64], columns[8 * 64];        \
  __shared__ u64 full;                                                           \
  int t = threadIdx.x;                                                           \
  if (t == 0) {                                                                  \
    init(&full, 1);                                                              \
    fence_init();                                                                \
  }                                                                              \
  __syncthreads();                                                               \
  if (t == 0) {                                                                  \
    expect(&full, 64 * 128 + 8 * 128);                                           \
    load_box(rows, &a, 0, 0, &full);                                             \
    load_box(columns, &b, 0, 0, &full);                                          \
  }

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void swizzle_that_the_tile_does_not_have(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 2), descriptor(columns, 16, 1024, 1));  // <- wgmma-descriptor
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 0), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void tile_without_the_swizzle_of_its_descriptor(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));  // <- wgmma-descriptor
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void stride_of_half_a_pattern(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 512, 1), descriptor(columns, 16, 1024, 1));  // <- wgmma-descriptor
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void stride_of_one_row(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 128, 1), descriptor(columns, 16, 1024, 1));  // <- wgmma-descriptor
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void operand_that_starts_inside_a_pattern(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows + 64, 16, 1024, 1), descriptor(columns, 16, 1024, 1));  // <- wgmma-descriptor
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void product_without_a_wait_for_its_tiles(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  float d[4] = {};
  __syncthreads();
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));  // <- race
  wgmma_commit();
  wgmma_wait<0>();
  wait(&full, 0);
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void product_without_a_fence(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));  // <- wgmma-unfenced
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void result_used_without_a_wait(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));
  wgmma_commit();
  put_rows(out, d);  // <- wgmma-in-flight
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void operand_overwritten_before_the_wait(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));
  wgmma_commit();
  rows[t] = 0;  // <- race
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void operand_written_without_a_proxy_fence(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  __syncthreads();
  rows[t] = 0;
  __syncthreads();
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 1024, 1), descriptor(columns, 16, 1024, 1));  // <- missing-proxy-fence
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 128>>>(out=Empty((64, 8)), a=Tensor(halves(64, 64), (64, 64), 128), b=Tensor(halves(8, 64), (8, 64), 128))
extern "C" __global__ void operand_past_the_end_of_shared_memory(
    float* out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
  TILES;
  wait(&full, 0);
  float d[4] = {};
  wgmma_fence();
  multiply(d, descriptor(rows, 16, 2048, 1), descriptor(columns, 16, 1024, 1));  // <- shared-out-of-bounds
  wgmma_commit();
  wgmma_wait<0>();
  put_rows(out, d);
}

// run: <<<1, 32>>>(out=Empty(32), a=Tensor(halves(64, 64), (64, 64), 128))
extern "C" __global__ void box_at_an_odd_column(float* out, const __grid_constant__ TensorMap a) {
  __shared__ alignas(1024) unsigned short rows[64 * 64];
  __shared__ u64 full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
    load_box(rows, &a, 3, 0, &full);  // <- tma-coordinates
  }
  out[threadIdx.x] = 1;
}

// run: <<<1, 32>>>(out=Empty(32), a=Tensor(halves(64, 64), (64, 64), 128))
extern "C" __global__ void box_at_an_odd_address(float* out, const __grid_constant__ TensorMap a) {
  __shared__ alignas(1024) unsigned short rows[65 * 64];
  __shared__ u64 full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, 8192);
    load_box(rows + 8, &a, 0, 0, &full);  // <- tma-alignment
  }
  __syncwarp();
  wait(&full, 0);
  out[threadIdx.x] = 1;
}

// run: <<<1, 32>>>(out=Empty(32), a=Tensor(halves(64, 64), (64, 64), 128))
extern "C" __global__ void box_larger_than_its_tile(float* out, const __grid_constant__ TensorMap a) {
  __shared__ alignas(1024) unsigned short rows[32 * 64];
  __shared__ u64 full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
    load_box(rows, &a, 0, 0, &full);  // <- shared-out-of-bounds
  }
  out[threadIdx.x] = 1;
}

// run: <<<1, 128>>>(a=Tensor(halves(64, 64), (64, 64), 128))
extern "C" __global__ void box_stored_without_a_fence(const __grid_constant__ TensorMap a) {
  __shared__ alignas(1024) unsigned rows[64 * 32];
  for (int i = threadIdx.x; i < 64 * 32; i += 128) rows[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {
    store_box(&a, 0, 0, rows);  // <- missing-proxy-fence
    commit();
    wait_stores();
  }
}
