// SPDX-License-Identifier: Apache-2.0
// Barriers of a CTA that are missing, too many, or not reached by all; tiles that are not complete.

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void both_branches_have_a_barrier(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  if (t & 1) {
    data[t] = t;
    __syncthreads();  // <- divergent-barrier
  } else {
    data[t] = -t;
    __syncthreads();
  }
  out[t] = data[63 - t];
}

// run: <<<1, 64>>>(out=Empty(64), n=40)
extern "C" __global__ void barrier_for_some_threads(float* out, int n) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  if (t < n) {
    data[t] = 2 * t;
    __syncthreads();  // <- divergent-barrier
  }
  out[t] = data[t] + n;
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void barriers_in_loops_of_several_lengths(float* out) {
  __shared__ float data[32];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < t % 4; ++i) {
    data[t] = i;
    __syncthreads();  // <- divergent-barrier
    sum += data[t];
  }
  out[t] = sum;
}

// run: <<<1, 64>>>(out=ints(64), n=40)
extern "C" __global__ void vote_under_a_condition(int* out, int n) {
  int t = threadIdx.x, any = 0;
  if (t < n) any = __syncthreads_or(t == 3);  // <- divergent-barrier
  out[t] = any + t;
}

// run: <<<1, 64>>>(out=Empty(1), values=ramp(64))
extern "C" __global__ void tree_with_its_barrier_in_the_branch(float* out, const float* values) {
  __shared__ float sums[64];
  int t = threadIdx.x;
  sums[t] = values[t];
  __syncthreads();
#pragma unroll 1
  for (int s = 32; s > 0; s /= 2) {
    if (t < s) {
      sums[t] += sums[t + s];
      __syncthreads();  // <- divergent-barrier
    }
  }
  if (t == 0) *out = sums[0];
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void no_barrier_between_store_and_load(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  out[t] = data[63 - t];  // <- race
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void syncwarp_where_warps_meet(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  __syncwarp();
  out[t] = data[63 - t];  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
extern "C" __global__ void tile_overwritten_too_early(float* out, const float* values) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    tile[t] = values[64 * i + t];  // <- race
    __syncthreads();
    sum += tile[63 - t];
  }
  out[t] = sum;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void half_of_the_block_waits(float* out) {
  int t = threadIdx.x;
  if (t < 32)
    asm volatile("bar.sync 1, 64;" ::: "memory");  // <- deadlock
  out[t] = t;
}

// run: <<<1, 96>>>(out=Empty(96))
extern "C" __global__ void too_few_threads_for_the_count(float* out) {
  int t = threadIdx.x;
  if (t < 64) asm volatile("bar.sync 1, 96;" ::: "memory");  // <- deadlock
  out[t] = t;
}

// run: <<<1, 64>>>(out=Empty(64), n=50)
extern "C" __global__ void part_of_a_tile_is_loaded(float* out, int n) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  if (t < n) tile[t] = t;
  __syncthreads();
  out[t] = tile[63 - t];  // <- uninitialised-shared
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void past_the_end_of_shared_memory(float* out) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = t;
  __syncthreads();
  out[t] = t < 63 ? tile[t] : tile[t + 1 + (int)tile[5]];  // <- shared-out-of-bounds
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void from_one_shared_array_into_another(float* out) {
  __shared__ float a[64];
  __shared__ float b[64];
  int t = threadIdx.x;
  a[t] = t;
  b[t] = -t;
  __syncthreads();
  out[t] = a[t + (out != nullptr)] + b[t];  // <- stray-address
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
extern "C" __global__ void copy_that_is_not_waited_for(float* out, const float4* values) {
  __shared__ float4 tile[64];
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(values + t) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  __syncthreads();
  out[t] = tile[t].x;  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
extern "C" __global__ void barrier_before_the_wait_for_a_copy(float* out, const float4* values) {
  __shared__ float4 tile[64];
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(values + t) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  __syncthreads();
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  out[t] = tile[63 - t].x;  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(512))
extern "C" __global__ void wait_that_leaves_one_copy(float* out, const float4* values) {
  __shared__ float4 tile[2][64];
  int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[i][t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(values + 64 * i + t)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  out[t] = tile[0][t].x + tile[1][t].x;  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
extern "C" __global__ void copy_outside_of_any_group(float* out, const float4* values) {
  __shared__ float4 tile[64];
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(values + t) : "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[t] = tile[t].x;  // <- race
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
extern "C" __global__ void copy_in_flight_at_the_end(float* out, const float4* values) {
  __shared__ float4 tile[64];
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(values + t)  // <- cp-async-unwaited
               : "memory");
  out[t] = t;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void two_tiles_and_a_barrier_too_few(float* out) {
  __shared__ float tile[2][64];
  int t = threadIdx.x;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    tile[i % 2][t] = i;  // <- race
    if (i % 2) __syncthreads();
    sum += tile[i % 2][63 - t];
  }
  out[t] = sum;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void other_values_in_one_word(float* out) {
  __shared__ int last;
  last = threadIdx.x / 32;  // <- race
  __syncthreads();
  out[threadIdx.x] = last;
}

// run: <<<1, 128>>>(bins=ints(8), values=iramp(128))
extern "C" __global__ void histogram_without_atomics(int* bins, const int* values) {
  __shared__ int mine[8];
  int t = threadIdx.x;
  if (t < 8) mine[t] = 0;
  __syncthreads();
  mine[values[t] % 8] += 1;  // <- race
  __syncthreads();
  if (t < 8) bins[t] = mine[t];
}

// run: <<<1, 128>>>(bins=ints(8), values=iramp(128))
extern "C" __global__ void bins_that_are_not_cleared(int* bins, const int* values) {
  __shared__ int mine[8];
  int t = threadIdx.x;
  atomicAdd(&mine[values[t] % 8], 1);  // <- uninitialised-shared
  __syncthreads();
  if (t < 8) bins[t] = mine[t];
}
