// SPDX-License-Identifier: Apache-2.0
// Locks, tickets and tables: threads take turns with memory that all of them change.

// run: <<<4, 64>>>(lock=ints(1), total=ints(1))
// gives: total[0] == 8
extern "C" __global__ void lock_given_back_by_an_exchange(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    *total += 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}

// run: <<<4, 64>>>(lock=ints(1), total=ints(1))
// gives: total[0] == 8
extern "C" __global__ void lock_given_back_by_a_volatile_store(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicExch(lock, 1) != 0) {
    }
    __threadfence();
    *total += 1;
    __threadfence();
    *(volatile int*)lock = 0;
  }
}

// run: <<<2, 64>>>(lock=ints(1), total=ints(1))
// gives: total[0] == 128
extern "C" __global__ void lock_of_every_lane(int* lock, int* total) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *total += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// run: <<<2, 64>>>(total=ints(2))
// gives: (total == 64).all()
extern "C" __global__ void lock_in_shared_memory_of_every_lane(int* total) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = sum = 0;
  __syncthreads();
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      __threadfence_block();
      sum = sum + 1;
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) total[blockIdx.x] = sum;
}

// run: <<<2, 128>>>(total=ints(2))
// gives: (total == 4).all()
extern "C" __global__ void lock_in_shared_memory(int* total) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = 0, sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {
    }
    __threadfence_block();
    sum += 1;
    __threadfence_block();
    atomicExch(&lock, 0);
  }
  __syncthreads();
  if (threadIdx.x == 0) total[blockIdx.x] = sum;
}

// run: <<<1, 128>>>(total=ints(1))
// gives: total[0] == 4
extern "C" __global__ void lock_in_shared_memory_given_back_by_a_volatile_store(int* total) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = 0, sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicExch(&lock, 1) != 0) {
    }
    __threadfence_block();
    sum += 1;
    __threadfence_block();
    *(volatile int*)&lock = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) *total = sum;
}

// run: <<<4, 64>>>(next=ints(1), serving=ints(1), order=ints(8), total=ints(1))
// gives: total[0] == 8 and sorted(order) == list(range(8))
extern "C" __global__ void ticket_lock(int* next, int* serving, int* order, int* total) {
  if (threadIdx.x % 32 == 0) {
    int mine = atomicAdd(next, 1);
    while (*(volatile int*)serving != mine) {
    }
    __threadfence();
    order[*total] = mine;
    *total += 1;
    __threadfence();
    atomicAdd(serving, 1);
  }
}

// run: <<<1, 128>>>(total=ints(1))
// gives: total[0] == 4
extern "C" __global__ void ticket_lock_in_shared_memory(int* total) {
  __shared__ int next, serving, sum;
  if (threadIdx.x == 0) next = 0, serving = 0, sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    int mine = atomicAdd(&next, 1);
    while (*(volatile int*)&serving != mine) {
    }
    __threadfence_block();
    sum += 1;
    __threadfence_block();
    *(volatile int*)&serving = mine + 1;
  }
  __syncthreads();
  if (threadIdx.x == 0) *total = sum;
}

// run: <<<2, 64>>>(free=full(1, 1), total=ints(1))
// gives: total[0] == 4 and free[0] == 1
extern "C" __global__ void semaphore(int* free, int* total) {
  if (threadIdx.x % 32 == 0) {
    while (atomicSub(free, 1) <= 0) atomicAdd(free, 1);
    __threadfence();
    *total += 1;
    __threadfence();
    atomicAdd(free, 1);
  }
}

// run: <<<2, 64>>>(locks=ints(8), sums=ints(8))
// gives: (sums == 16).all()
extern "C" __global__ void a_lock_for_every_bin(int* locks, int* sums) {
  int bin = threadIdx.x % 8;
  bool done = false;
  while (!done) {
    if (atomicCAS(&locks[bin], 0, 1) == 0) {
      __threadfence();
      sums[bin] += 1;
      __threadfence();
      atomicExch(&locks[bin], 0);
      done = true;
    }
  }
}

// run: <<<2, 64>>>(keys=full(256, -1), values=ints(256))
// gives: sorted(keys[keys >= 0]) == list(range(128)) and all(values[keys == k] == 2 * k for k in range(128))
extern "C" __global__ void open_addressing(int* keys, int* values) {
  int key = blockIdx.x * blockDim.x + threadIdx.x;
  int at = key * 37 % 256;
  while (atomicCAS(&keys[at], -1, key) != -1) at = (at + 1) % 256;
  values[at] = 2 * key;
}

// run: <<<4, 64>>>(largest=floats(1), values=ramp(256))
// gives: largest[0] == 255
extern "C" __global__ void largest_by_compare_and_swap(float* largest, const float* values) {
  float mine = values[blockIdx.x * blockDim.x + threadIdx.x];
  int* bits = (int*)largest;
  int old = *(volatile int*)bits;
  while (__int_as_float(old) < mine) {
    int seen = atomicCAS(bits, old, __float_as_int(mine));
    if (seen == old) break;
    old = seen;
  }
}

// run: <<<2, 32>>>(head=full(1, -1), next=ints(64), payload=ints(64))
// gives: (payload == np.arange(64)).all() and head[0] >= 0
extern "C" __global__ void stack_of_nodes(int* head, int* next, int* payload) {
  int node = blockIdx.x * blockDim.x + threadIdx.x;
  payload[node] = node;
  int top = *(volatile int*)head;
  while (true) {
    next[node] = top;
    __threadfence();
    int seen = atomicCAS(head, top, node);
    if (seen == top) break;
    top = seen;
  }
}

// run: <<<3, 64>>>(lock=ints(1), total=ints(1))
// gives: total[0] == 6
extern "C" __global__ void lock_by_acquire_and_release(int* lock, int* total) {
  if (threadIdx.x % 32 == 0) {
    int held = 1;
    while (held)
      asm volatile("atom.acquire.gpu.cas.b32 %0, [%1], 0, 1;" : "=r"(held) : "l"(lock) : "memory");
    *total += 1;
    asm volatile("st.release.gpu.b32 [%0], 0;" ::"l"(lock) : "memory");
  }
}

__device__ int held;
__device__ int counted;

// run: <<<3, 32>>>(out=ints(3))
// gives: sorted(out) == [1, 2, 3]
extern "C" __global__ void lock_in_a_variable_of_the_module(int* out) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&held, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    out[blockIdx.x] = ++counted;
    __threadfence();
    atomicExch(&held, 0);
  }
}

// run: <<<2, 64>>>(sum=np.zeros(1), most=floats(1), values=ramp(128))
// gives: sum[0] == 8128 and most[0] == 127
extern "C" __global__ void any_operation_by_compare_and_swap(double* sum, float* most,
                                                             const float* values) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long *bits = (unsigned long long*)sum, old = *bits, assumed;
  do {
    assumed = old;
    double more = __longlong_as_double(assumed) + values[i];
    old = atomicCAS(bits, assumed, __double_as_longlong(more));
  } while (assumed != old);
  float there = *most, seen;
  do {
    seen = there;
    there = __int_as_float(
        atomicCAS((int*)most, __float_as_int(seen), __float_as_int(fmaxf(seen, values[i]))));
  } while (seen != there);
}

// run: <<<1, 64>>>(out=floats(1), values=ramp(64))
// gives: out[0] == 2016
extern "C" __global__ void compare_and_swap_in_shared_memory(float* out, const float* values) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  int old = __float_as_int(sum), assumed;
  do {
    assumed = old;
    old = atomicCAS((int*)&sum, assumed,
                    __float_as_int(__int_as_float(assumed) + values[threadIdx.x]));
  } while (assumed != old);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = sum;
}
