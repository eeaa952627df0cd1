// SPDX-License-Identifier: Apache-2.0
// Lanes of a warp: shuffles, votes, masks, and memory that they share.

#define ALL 0xffffffffu

// run: <<<1, 64>>>(out=Empty(2), values=ramp(64))
// gives: (out == [496, 1520]).all()
extern "C" __global__ void sum_by_shuffles(float* out, const float* values) {
  float sum = values[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL, sum, distance);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}

// run: <<<1, 128>>>(out=Empty(128), values=ramp(128))
// gives: (out == 8128).all()
extern "C" __global__ void sum_stored_by_all_lanes(float* out, const float* values) {
  __shared__ float sums[4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = values[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL, sum, distance);
  sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < 4 ? sums[lane] : 0;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL, sum, distance);
    sums[0] = sum;
  }
  __syncthreads();
  out[threadIdx.x] = sums[0];
}

// run: <<<1, 32>>>(out=Empty(32))
// gives: (out == (np.arange(32) + 16) % 32).all()
extern "C" __global__ void both_branches_meet_at_syncwarp(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  float other;
  if (lane < 16) {
    data[lane] = lane;
    __syncwarp();
    other = data[lane + 16];
  } else {
    data[lane] = lane;
    __syncwarp();
    other = data[lane - 16];
  }
  out[lane] = other;
}

// run: <<<2, 64>>>(out=Empty(128))
// gives: (out == np.tile(np.r_[1:32, 0], 4)).all()
extern "C" __global__ void neighbours_in_shared_memory(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x, lane = t % 32;
  data[t] = lane;
  __syncwarp();
  out[blockIdx.x * 64 + t] = data[t - lane + (lane + 1) % 32];
}

// run: <<<1, 64>>>(out=Empty(64))
// gives: (out == np.repeat([0, 100], 32)).all()
extern "C" __global__ void one_lane_for_its_warp(float* out) {
  __shared__ float first[2];
  int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) first[warp] = 100 * warp;
  __syncwarp();
  out[threadIdx.x] = first[warp];
}

// run: <<<2, 64>>>(count=ints(1), values=iramp(128))
// gives: count[0] == 43
extern "C" __global__ void atomics_of_a_warp_together(int* count, const int* values) {
  bool mine = values[blockIdx.x * 64 + threadIdx.x] % 3 == 0;
  unsigned voters = __ballot_sync(ALL, mine);
  if (mine && threadIdx.x % 32 == __ffs(voters) - 1) atomicAdd(count, __popc(voters));
}

// run: <<<2, 64>>>(next=ints(1), out=full(128, -1), values=iramp(128))
// gives: sorted(out[:64]) == list(range(0, 128, 2)) and (out[64:] == -1).all()
extern "C" __global__ void places_from_one_atomic_a_warp(int* next, int* out, const int* values) {
  int value = values[blockIdx.x * 64 + threadIdx.x], lane = threadIdx.x % 32;
  bool keep = value % 2 == 0;
  unsigned kept = __ballot_sync(ALL, keep);
  int leader = __ffs(kept) - 1, first = 0;
  if (lane == leader) first = atomicAdd(next, __popc(kept));
  first = __shfl_sync(ALL, first, leader);
  if (keep) out[first + __popc(kept & ((1u << lane) - 1))] = value;
}

// run: <<<1, 64>>>(bins=ints(4), values=iramp(64))
// gives: (bins == 16).all()
extern "C" __global__ void atomics_of_lanes_with_the_same_key(int* bins, const int* values) {
  int key = values[threadIdx.x] % 4;
  unsigned same = __match_any_sync(ALL, key);
  if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(&bins[key], __popc(same));
}

// run: <<<1, 32>>>(out=Empty(32))
// gives: (out == np.repeat([120, 376], 16)).all()
extern "C" __global__ void half_warps_apart(float* out) {
  int lane = threadIdx.x;
  unsigned mine = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  float sum = lane;
  for (int distance = 8; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(mine, sum, distance, 16);
  out[lane] = sum;
}

// run: <<<1, 32>>>(out=Empty(32))
// gives: (out[:16] == np.r_[1:16, 0]).all() and (out[16:] == -1).all()
extern "C" __global__ void some_lanes_sync(float* out) {
  __shared__ float data[16];
  int lane = threadIdx.x;
  if (lane < 16) {
    data[lane] = lane;
    __syncwarp(0x0000ffffu);
    out[lane] = data[(lane + 1) % 16];
  } else {
    out[lane] = -1;
  }
}

// run: <<<1, 64>>>(out=floats(1), values=ramp(50), n=50)
// gives: out[0] == 1225
extern "C" __global__ void lanes_that_ended_are_not_in_the_mask(float* out, const float* values,
                                                                int n) {
  unsigned there = __ballot_sync(ALL, threadIdx.x < n);
  if (threadIdx.x >= n) return;
  float sum = values[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    float other = __shfl_down_sync(there, sum, distance);
    if ((threadIdx.x % 32) + distance < __popc(there)) sum += other;
  }
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

// run: <<<1, 32>>>(values=ramp(32), out=Empty(1))
// gives: out[0] == 496
extern "C" __global__ void tree_of_one_warp(const float* values, float* out) {
  __shared__ volatile float sums[32];
  int lane = threadIdx.x;
  sums[lane] = values[lane];
  __syncwarp();
  for (int s = 16; s > 0; s /= 2) {
    float other = lane < s ? sums[lane + s] : 0;
    __syncwarp();
    if (lane < s) sums[lane] = sums[lane] + other;
    __syncwarp();
  }
  if (lane == 0) *out = sums[0];
}

// run: <<<1, 32>>>(out=Empty(32), values=ramp(32))
// gives: (out == np.cumsum(np.arange(32))).all()
extern "C" __global__ void scan_of_a_warp(float* out, const float* values) {
  int lane = threadIdx.x;
  float sum = values[lane];
  for (int distance = 1; distance < 32; distance *= 2) {
    float other = __shfl_up_sync(ALL, sum, distance);
    if (lane >= distance) sum += other;
  }
  out[lane] = sum;
}

// run: <<<1, 64>>>(out=ints(2))
// gives: (out == 496).all()
extern "C" __global__ void sum_in_one_instruction(int* out) {
  int sum = __reduce_add_sync(ALL, threadIdx.x % 32);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}

// run: <<<1, 96>>>(out=Empty(3))
// gives: (out == [496, 0, 31]).all()
extern "C" __global__ void every_warp_has_its_role(float* out) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float value = lane;
  if (warp == 0) {
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(ALL, value, d);
  } else if (warp == 1) {
    for (int d = 16; d > 0; d /= 2) value = fminf(value, __shfl_xor_sync(ALL, value, d));
  } else {
    for (int d = 16; d > 0; d /= 2) value = fmaxf(value, __shfl_xor_sync(ALL, value, d));
  }
  if (lane == 0) out[warp] = value;
}

// run: <<<1, 32>>>(out=Empty(32), values=ramp(32))
// gives: (out == np.arange(32)).all()
extern "C" __global__ void sort_of_a_warp(float* out, const float* values) {
  int lane = threadIdx.x;
  float mine = values[(7 * lane) % 32];
  for (int size = 2; size <= 32; size *= 2)
    for (int distance = size / 2; distance > 0; distance /= 2) {
      float other = __shfl_xor_sync(ALL, mine, distance);
      bool low = ((lane & distance) == 0) == ((lane & size) == 0);
      mine = low ? fminf(mine, other) : fmaxf(mine, other);
    }
  out[lane] = mine;
}

// run: <<<2, 64>>>(out=ints(128), count=ints(1))
// gives: count[0] == 44 and (np.sort(out)[-44:] == [i for i in range(128) if i % 3 == 1 or i == 0]).all()
extern "C" __global__ void leader_counts_for_its_warp(int* out, int* count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  if (i % 3 == 1 || i == 0) {
    unsigned there = __activemask();
    int leader = __ffs(there) - 1, base;
    if (lane == leader) base = atomicAdd(count, __popc(there));
    base = __shfl_sync(there, base, leader);
    out[base + __popc(there & ((1u << lane) - 1))] = i;
  }
}
