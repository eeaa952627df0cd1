// SPDX-License-Identifier: Apache-2.0
// Locks, flags and counters without the fences, the scope or the atomics that they need.

// run: <<<4, 64>>>(lock=ints(1), total=ints(1))
extern "C" __global__ void lock_without_fences(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    *total += 1;  // <- cta-write-conflict
    atomicExch(lock, 0);
  }
}

// run: <<<4, 64>>>(lock=ints(1), total=ints(1))
extern "C" __global__ void lock_given_back_without_a_fence(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    *total += 1;  // <- cta-write-conflict
    atomicExch(lock, 0);
  }
}

// run: <<<4, 64>>>(lock=ints(1), total=ints(1))
extern "C" __global__ void lock_given_back_by_a_plain_store(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    *total += 1;
    __threadfence();
    *lock = 0;  // <- cta-write-conflict
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
extern "C" __global__ void flag_without_a_fence_before_it(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (*(volatile int*)flag == 0) {
      }
    __syncthreads();
    __threadfence();
    out[threadIdx.x] = data[threadIdx.x];  // <- cta-write-conflict
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
extern "C" __global__ void flag_without_a_fence_behind_it(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    __threadfence();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (*(volatile int*)flag == 0) {
      }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // <- cta-write-conflict
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
extern "C" __global__ void fence_of_the_block_between_blocks(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    __threadfence_block();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (*(volatile int*)flag == 0) {
      }
    __syncthreads();
    __threadfence();
    out[threadIdx.x] = data[threadIdx.x];  // <- cta-write-conflict
  }
}

// run: <<<1, 128>>>(total=ints(1))
extern "C" __global__ void lock_in_shared_memory_without_a_fence(int* total) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = 0, sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {
    }
    __threadfence_block();
    sum += 1;  // <- race
    *(volatile int*)&lock = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) *total = sum;
}

// run: <<<1, 64>>>(out=Empty(32))
extern "C" __global__ void flag_in_shared_memory_without_a_fence(float* out) {
  __shared__ volatile int ready;
  __shared__ float data[32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = lane;
    __syncwarp();
    if (lane == 0) ready = 1;
  } else {
    while (ready == 0) {
    }
    __threadfence_block();
    out[lane] = data[lane];  // <- race
  }
}

// run: <<<4, 32>>>(count=ints(1), partial=Empty(128), out=Empty(32))
extern "C" __global__ void last_block_without_a_fence(int* count, float* partial, float* out) {
  __shared__ int before;
  int t = threadIdx.x;
  partial[blockIdx.x * 32 + t] = t + blockIdx.x;
  __syncthreads();
  if (t == 0) before = atomicAdd(count, 1);
  __syncthreads();
  if (before == gridDim.x - 1) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b * 32 + t];  // <- cta-write-conflict
    out[t] = sum;
  }
}

// run: <<<4, 64>>>(count=ints(1), data=Empty(256), out=Empty(256))
extern "C" __global__ void grid_barrier_without_its_block_barrier(int* count, float* data, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  data[i] = i;
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1);
    while (*(volatile int*)count < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
  out[i] = data[(i + blockDim.x) % n];  // <- cta-write-conflict
}

// run: <<<4, 64>>>(total=ints(1))
extern "C" __global__ void counter_without_an_atomic(int* total) {
  if (threadIdx.x == 0) *total += 1;  // <- cta-write-conflict
}

// run: <<<4, 64>>>(total=ints(1))
extern "C" __global__ void atomic_of_the_block_between_blocks(int* total) {
  if (threadIdx.x == 0) atomicAdd_block(total, 1);  // <- cta-write-conflict
}

// run: <<<4, 32>>>(flags=ints(4), sums=Empty(4), out=Empty(4))
extern "C" __global__ void look_back_without_fences(int* flags, float* sums, float* out) {
  if (threadIdx.x != 0) return;
  int b = blockIdx.x;
  float before = 0;
  if (b > 0) {
    while (*(volatile int*)&flags[b - 1] == 0) {
    }
    before = sums[b - 1];  // <- cta-write-conflict
  }
  sums[b] = before + b + 1;
  *(volatile int*)&flags[b] = 1;
  out[b] = before;
}

// run: <<<2, 32>>>(flag=ints(1), out=Empty(32))
extern "C" __global__ void flag_that_nobody_raises(int* flag, float* out) {
  if (blockIdx.x == 1)
    while (*(volatile int*)flag == 0) {  // <- deadlock
    }
  out[threadIdx.x] = 1;
}

// run: <<<2, 32>>>(flag=ints(1), out=Empty(64))
extern "C" __global__ void flag_read_plainly(int* flag, float* out) {
  if (threadIdx.x == 0 && blockIdx.x == 0) atomicExch(flag, 1);
  out[blockIdx.x * 32 + threadIdx.x] = *flag;  // <- cta-write-conflict
}

// run: <<<4, 64>>>(out=ints(1))
extern "C" __global__ void blocks_store_other_values(int* out) {
  *out = blockIdx.x;  // <- cta-write-conflict
}

// run: <<<1, 32>>>(total=ints(1))
extern "C" __global__ void lock_of_every_lane_without_fences(int* total) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = sum = 0;
  __syncthreads();
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      sum = sum + 1;  // <- intra-warp-race
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) total[0] = sum;
}
