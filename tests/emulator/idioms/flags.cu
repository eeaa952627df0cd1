// SPDX-License-Identifier: Apache-2.0
// Flags and counters: a thread tells others that its data is there.

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void flag_by_a_volatile_store(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *(volatile int*)flag = 1;
  } else {
    if (threadIdx.x == 0)
      while (*(volatile int*)flag == 0) {
      }
    __syncthreads();
    __threadfence();
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void flag_by_an_addition(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(flag, 1);
    }
  } else {
    if (threadIdx.x == 0) {
      while (*(volatile int*)flag == 0) {
      }
      __threadfence();
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void flag_by_an_exchange(int* flag, float* data, float* out) {
  if (blockIdx.x == 1) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    __threadfence();
    if (threadIdx.x == 0) atomicExch(flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (atomicAdd(flag, 0) == 0) {
      }
    __threadfence();
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// run: <<<2, 64>>>(flag=ints(1), data=Empty(64), out=Empty(64))
// gives: (out == np.arange(64)).all()
extern "C" __global__ void flag_counted_by_all_threads(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __threadfence();
    atomicAdd(flag, 1);
  } else {
    while (*(volatile int*)flag != 64) {
    }
    __threadfence();
    out[threadIdx.x] = data[63 - threadIdx.x] * 0 + data[threadIdx.x];
  }
}

// run: <<<2, 32>>>(flag=ints(1), data=Empty(32), out=Empty(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void flag_by_release_and_acquire(int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(flag) : "memory");
  } else {
    int ready = 0;
    if (threadIdx.x == 0)
      while (!ready) asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// run: <<<4, 64>>>(count=ints(1), data=Empty(256), out=Empty(256))
// gives: (out == (np.arange(256) + 64) % 256).all()
extern "C" __global__ void grid_barrier(int* count, float* data, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  data[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1);
    while (*(volatile int*)count < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
  out[i] = data[(i + blockDim.x) % n];
}

// run: <<<3, 32>>>(count=ints(1), sense=ints(1), data=ints(96))
// gives: (data == 3).all()
extern "C" __global__ void grid_barriers_with_a_sense(int* count, int* sense, int* data) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  for (int step = 0; step < 3; ++step) {
    int old = data[(i + 32 * (step % 2)) % n];
    for (int half = 0; half < 2; ++half) {
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        int wanted = 2 * step + half + 1;
        if (atomicAdd(count, 1) == gridDim.x - 1) {
          *(volatile int*)count = 0;
          __threadfence();
          atomicExch(sense, wanted);
        } else {
          while (*(volatile int*)sense < wanted) {
          }
        }
        __threadfence();
      }
      __syncthreads();
      if (half == 0) data[(i + 32 * (step % 2)) % n] = old + 1;
    }
  }
}

// run: <<<4, 32>>>(flags=ints(4), partial=Empty(128), out=Empty(32))
// gives: (out == 4 * np.arange(32) + 6).all()
extern "C" __global__ void partial_sums_behind_flags(int* flags, float* partial, float* out) {
  int t = threadIdx.x, b = blockIdx.x;
  if (b > 0) {
    partial[b * 32 + t] = t + b;
    __syncthreads();
    if (t == 0) {
      __threadfence();
      atomicExch(&flags[b], 1);
    }
    return;
  }
  float sum = t;
  for (int from = 1; from < 4; ++from) {
    if (t == 0)
      while (atomicCAS(&flags[from], 1, 1) != 1) {
      }
    __syncthreads();
    __threadfence();
    sum += partial[from * 32 + t];
  }
  out[t] = sum;
}

// run: <<<4, 64>>>(count=ints(1), partial=Empty(4), out=Empty(1), values=ramp(256))
// gives: out[0] == 32640
extern "C" __global__ void last_block_sums(int* count, volatile float* partial, float* out,
                                           const float* values) {
  __shared__ float sums[64];
  __shared__ bool last;
  int t = threadIdx.x;
  sums[t] = values[blockIdx.x * 64 + t];
  __syncthreads();
  for (int s = 32; s > 0; s /= 2) {
    if (t < s) sums[t] += sums[t + s];
    __syncthreads();
  }
  if (t == 0) {
    partial[blockIdx.x] = sums[0];
    __threadfence();
    last = atomicInc((unsigned*)count, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
    *out = sum;
  }
}

// run: <<<4, 32>>>(count=ints(1), partial=Empty(128), out=Empty(32))
// gives: (out == 4 * np.arange(32) + 6).all()
extern "C" __global__ void last_block_reads_plain_data(int* count, float* partial, float* out) {
  __shared__ int before;
  int t = threadIdx.x;
  partial[blockIdx.x * 32 + t] = t + blockIdx.x;
  __threadfence();
  __syncthreads();
  if (t == 0) before = atomicAdd(count, 1);
  __syncthreads();
  if (before == gridDim.x - 1) {
    __threadfence();
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b * 32 + t];
    out[t] = sum;
  }
}

// run: <<<4, 32>>>(state=longs(4), out=ints(4))
// gives: (out == np.array([0, 32, 64, 96])).all()
extern "C" __global__ void look_back_at_words_with_a_flag(unsigned long long* state, int* out) {
  if (threadIdx.x != 0) return;
  int b = blockIdx.x, before = 0;
  const unsigned long long partial = 1ull << 32, whole = 2ull << 32;
  if (b > 0) atomicExch(&state[b], partial | 32);
  for (int at = b - 1; at >= 0;) {
    unsigned long long seen = *(volatile unsigned long long*)&state[at];
    if (seen == 0) continue;
    before += (int)seen;
    if (seen & whole) break;
    at -= 1;
  }
  atomicExch(&state[b], whole | (before + 32));
  out[b] = before;
}

// run: <<<4, 32>>>(flags=ints(4), sums=Empty(4), out=Empty(4))
// gives: (out == np.array([0, 1, 3, 6])).all()
extern "C" __global__ void look_back_at_flags_and_sums(int* flags, float* sums, float* out) {
  if (threadIdx.x != 0) return;
  int b = blockIdx.x;
  float before = 0;
  if (b > 0) {
    while (*(volatile int*)&flags[b - 1] == 0) {
    }
    __threadfence();
    before = sums[b - 1];
  }
  sums[b] = before + b + 1;
  __threadfence();
  *(volatile int*)&flags[b] = 1;
  out[b] = before;
}

// run: <<<1, 64>>>(out=Empty(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void flag_in_shared_memory(float* out) {
  __shared__ volatile int ready;
  __shared__ float data[32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = lane;
    __threadfence_block();
    __syncwarp();
    if (lane == 0) ready = 1;
  } else {
    while (ready == 0) {
    }
    __threadfence_block();
    out[lane] = data[lane];
  }
}

// run: <<<1, 64>>>(out=ints(8))
// gives: (out == 10 * np.arange(8)).all()
extern "C" __global__ void mailbox_in_shared_memory(int* out) {
  __shared__ volatile int full;
  __shared__ int letter;
  if (threadIdx.x == 0) full = 0;
  __syncthreads();
  for (int i = 0; i < 8; ++i) {
    if (threadIdx.x == 0) {
      while (full) {
      }
      __threadfence_block();
      letter = 10 * i;
      __threadfence_block();
      full = 1;
    } else if (threadIdx.x == 32) {
      while (!full) {
      }
      __threadfence_block();
      out[i] = letter;
      __threadfence_block();
      full = 0;
    }
  }
}

// run: <<<2, 64>>>(next=ints(1), out=Empty(8))
// gives: (out == np.arange(8)).all()
extern "C" __global__ void persistent_blocks_take_tiles(int* next, float* out) {
  __shared__ int tile;
  while (true) {
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();
    int mine = tile;
    __syncthreads();
    if (mine >= 8) break;
    if (threadIdx.x == 0) out[mine] = mine;
  }
}

// run: <<<3, 32>>>(turn=ints(1), sum=floats(32))
// gives: (sum == 3 + 3 * np.arange(32)).all()
extern "C" __global__ void blocks_add_in_turn(int* turn, float* sum) {
  int state = 0;
  while (__syncthreads_and(state != blockIdx.x || blockIdx.x == 0 && false)) {
    if (threadIdx.x == 0)
      asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(state) : "l"(turn) : "memory");
  }
  sum[threadIdx.x] += threadIdx.x + blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("st.global.release.gpu.b32 [%0], %1;" ::"l"(turn), "r"(blockIdx.x + 1) : "memory");
}

// run: <<<4, 64>>>(found=ints(1), values=iramp(256))
// gives: found[0] == 1
extern "C" __global__ void every_block_may_raise_one_flag(int* found, const int* values) {
  if (values[blockIdx.x * 64 + threadIdx.x] % 5 == 3) *found = 1;
}

// run: <<<2, 64>>>(out=ints(2), values=iramp(128))
// gives: (out == 1).all()
extern "C" __global__ void every_thread_may_raise_one_flag(int* out, const int* values) {
  __shared__ int any;
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  if (values[blockIdx.x * 64 + threadIdx.x] % 7 == 1) any = 1;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = any;
}

// run: <<<2, 64>>>(out=ints(2))
// gives: (out == 9).all()
extern "C" __global__ void all_threads_store_the_same(int* out) {
  __shared__ int size;
  size = 9;
  __syncthreads();
  out[blockIdx.x] = size;
}

// run: <<<4, 64>>>(visited=ints(100), level=3)
// gives: (visited[:97] == 3).all() and (visited[97:] == 0).all()
extern "C" __global__ void blocks_mark_what_they_visit(int* visited, int level) {
  visited[(blockIdx.x * 64 + threadIdx.x) * 5 % 97] = level;
}
