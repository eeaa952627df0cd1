// SPDX-License-Identifier: Apache-2.0
// arch: sm_90a
// Launches that a GPU refuses.

// run: <<<1, 256>>>(out=Empty(256))
extern "C" __global__ void __launch_bounds__(128) more_threads_than_the_bounds(float* out) {
  out[threadIdx.x] = 1;  // <- launch
}

// run: <<<1, 32, 240000>>>(out=Empty(32))
extern "C" __global__ void more_shared_memory_than_there_is(float* out) {
  extern __shared__ float many[];
  many[threadIdx.x] = 1;
  out[threadIdx.x] = many[threadIdx.x];  // <- launch
}

// run: <<<(1, 70000), 32>>>(out=Empty(32))
extern "C" __global__ void grid_too_high(float* out) {
  out[threadIdx.x] = 1;  // <- launch
}

// run: <<<1, (2, 2, 128)>>>(out=Empty(512))
extern "C" __global__ void block_too_deep(float* out) {
  out[threadIdx.x] = 1;  // <- launch
}

// run: <<<3, 32, 0, 2>>>(out=Empty(96))
extern "C" __global__ void grid_that_clusters_do_not_divide(float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = 1;  // <- launch
}

// run: <<<1, 32, 0, 0>>>(out=Empty(32))
extern "C" __global__ void cluster_of_nobody(float* out) {
  out[threadIdx.x] = 1;  // <- launch
}
