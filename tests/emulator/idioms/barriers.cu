// SPDX-License-Identifier: Apache-2.0
// Barriers of a CTA, tiles in shared memory, and copies to them.

// run: <<<2, 64>>>(out=Empty(128), flag=full(1, 1))
// gives: (out == np.tile(np.arange(64)[::-1], 2)).all()
extern "C" __global__ void barrier_under_a_condition_of_all(float* out, const int* flag) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  if (*flag) __syncthreads();
  out[blockIdx.x * 64 + t] = *flag ? data[63 - t] : 0;
}

// run: <<<2, 64>>>(out=Empty(128), n=3)
// gives: (out == 63 - np.arange(128) % 64).all()
extern "C" __global__ void barriers_in_a_loop_of_all(float* out, int n) {
  __shared__ float data[64];
  int t = threadIdx.x;
  float mine = t;
  for (int i = 0; i < n; ++i) {
    data[t] = mine;
    __syncthreads();
    mine = data[63 - t];
    __syncthreads();
  }
  out[blockIdx.x * 64 + t] = mine;
}

// run: <<<2, 128>>>(out=floats(256), n=70)
// gives: (out[:70] == 69).all() and (out[70:] == 0).all()
extern "C" __global__ void threads_without_work_end_first(float* out, int n) {
  __shared__ float largest[128];
  int t = threadIdx.x, i = blockIdx.x * 128 + t;
  if (i >= n) return;
  largest[t] = i;
  __syncthreads();
  float best = 0;
  for (int j = 0; j < n; ++j) best = fmaxf(best, largest[j]);
  out[i] = best;
}

// run: <<<1, 128>>>(out=Empty(64))
// gives: (out == np.arange(64)).all()
extern "C" __global__ void warps_at_barriers_of_their_own(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  if (t < 64) {
    data[t] = t;
    asm volatile("bar.arrive 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    out[t - 64] = data[t - 64];
  }
}

// run: <<<1, 128>>>(out=Empty(8))
// gives: (out == np.arange(8)).all()
extern "C" __global__ void producer_and_consumer_at_named_barriers(float* out) {
  __shared__ float tile[64];
  bool producer = threadIdx.x < 64;
  int t = threadIdx.x % 64;
  for (int i = 0; i < 8; ++i) {
    if (producer) {
      if (i > 0) asm volatile("bar.sync 2, 128;" ::: "memory");
      tile[t] = i;
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      if (t == 5) out[i] = tile[17];
      if (i < 7) asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  }
}

// run: <<<2, 64>>>(out=ints(2), values=iramp(128))
// gives: (out == [6, 0]).all()
extern "C" __global__ void votes_of_a_block(int* out, const int* values) {
  int left = values[threadIdx.x] * (blockIdx.x == 0), rounds = 0;
  while (__syncthreads_or(left > 0)) {
    left /= 2;
    ++rounds;
  }
  if (threadIdx.x == 0) out[blockIdx.x] = rounds;
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
// gives: (out == np.arange(256).reshape(4, 64).sum(0)).all()
extern "C" __global__ void tiles_that_are_reused(float* out, const float* values) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    tile[63 - t] = values[64 * i + t];
    __syncthreads();
    sum += tile[63 - t];
    __syncthreads();
  }
  out[t] = sum;
}

// run: <<<1, 64>>>(out=Empty(64), values=ramp(256))
// gives: (out == np.arange(256).reshape(4, 64).sum(0)).all()
extern "C" __global__ void two_tiles_and_one_barrier(float* out, const float* values) {
  __shared__ float tile[2][64];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    tile[i % 2][63 - t] = values[64 * i + 63 - t];
    __syncthreads();
    sum += tile[i % 2][t];
  }
  out[t] = sum;
}

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// run: <<<1, 64>>>(out=Empty(256), values=ramp(1024))
// gives: (out == np.arange(1024).reshape(4, 256).sum(0)).all()
extern "C" __global__ void three_tiles_on_their_way(float4* out, const float4* values) {
  __shared__ float4 ring[3][64];
  int t = threadIdx.x;
  float4 sum = {0, 0, 0, 0};
  auto load = [&](int i) {
    if (i < 4)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&ring[i % 3][t])),
                   "l"(values + 64 * i + t));
    asm volatile("cp.async.commit_group;");
  };
  load(0);
  load(1);
  for (int i = 0; i < 4; ++i) {
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    load(i + 2);
    float4 v = ring[i % 3][t];
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  out[t] = sum;
}

// run: <<<1, 64, 1024>>>(out=Empty(64))
// gives: (out == np.arange(64) + 63 - np.arange(64)).all()
extern "C" __global__ void arrays_in_dynamic_shared_memory(float* out) {
  extern __shared__ float both_arrays[];
  float *a = both_arrays, *b = both_arrays + 64;
  int t = threadIdx.x;
  a[t] = t;
  b[t] = t;
  __syncthreads();
  out[t] = a[t] + b[63 - t];
}

// run: <<<1, 64>>>(out=ints(64))
// gives: (out == 2 * np.arange(64)[::-1]).all()
extern "C" __global__ void one_memory_for_two_phases(int* out) {
  __shared__ union {
    float first[64];
    int second[64];
  } both;
  int t = threadIdx.x;
  both.first[t] = 2 * t;
  __syncthreads();
  int mine = both.first[63 - t];
  __syncthreads();
  both.second[t] = mine;
  __syncthreads();
  out[t] = both.second[t];
}

// run: <<<2, 64>>>(out=floats(100), a=ramp(100), n=100)
// gives: (out == 2 * np.arange(100)).all()
extern "C" __global__ void rows_past_the_end_are_read_and_never_stored(float* out, const float* a,
                                                                       int n) {
  __shared__ float tile[64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  if (i < n) tile[t] = a[i];
  __syncthreads();
  float own = tile[t];
  float twice = own + __shfl_sync(0xffffffffu, own, t % 32);
  if (i < n) out[i] = twice;
}

// run: <<<1, 64>>>(flag=full(1, 1), out=Empty(64))
// gives: (out == 63 - np.arange(64)).all()
extern "C" __global__ void one_lane_polls_before_the_barrier(int* flag, float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  if (t == 0)
    while (*(volatile int*)flag == 0) {
    }
  __syncthreads();
  out[t] = data[63 - t];
}

// run: <<<1, 96>>>(out=Empty(96))
// gives: (out == 95 - np.arange(96)).all()
extern "C" __global__ void warps_meet_at_barriers_in_several_places(float* out) {
  __shared__ float data[96];
  int t = threadIdx.x;
  if (t < 32) {
    data[t] = t;
    __syncthreads();
  } else {
    data[t] = t + 0.0f;
    __syncthreads();
  }
  out[t] = data[95 - t];
}

// run: <<<1, 64>>>(bins=ints(8), values=iramp(64))
// gives: (bins == 8).all()
extern "C" __global__ void histogram_in_shared_memory(int* bins, const int* values) {
  __shared__ int mine[8];
  int t = threadIdx.x;
  if (t < 8) mine[t] = 0;
  __syncthreads();
  atomicAdd(&mine[values[t] % 8], 1);
  __syncthreads();
  if (t < 8) atomicAdd(&bins[t], mine[t]);
}

// run: <<<2, 32>>>(a=ramp(64), b=ramp(64), n=64)
// gives: (a == np.arange(64)).all() and (b == 3 * np.arange(64)).all()
extern "C" __global__ void two_arrays_in_place(const float* a, float* b, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) b[i] = b[i] * 2 + a[i];
}

// run: <<<2, 32>>>(a=ramp(64), b=again("a"))
// gives: (a == 2 * np.arange(64)).all()
extern "C" __global__ void one_array_in_place(const float* a, float* b) {
  int i = blockIdx.x * 32 + threadIdx.x;
  b[i] = a[i] * 2;
}
