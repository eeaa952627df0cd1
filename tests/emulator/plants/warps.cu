// SPDX-License-Identifier: Apache-2.0
// Lanes of a warp that rely on each other without saying so, or name the wrong ones.

#define ALL 0xffffffffu

// run: <<<1, 32>>>(out=Empty(32), n=20)
extern "C" __global__ void shuffle_under_a_condition(float* out, int n) {
  int lane = threadIdx.x;
  float sum = lane;
  if (lane < n) sum += __shfl_xor_sync(ALL, sum, 1);  // <- membermask
  out[lane] = sum;
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void no_syncwarp_between_lanes(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  data[lane] = lane;
  out[lane] = data[31 - lane];  // <- intra-warp-race
}

// run: <<<1, 32>>>(out=floats(64))
extern "C" __global__ void no_syncwarp_behind_one_lane(float* out) {
  __shared__ float first;
  if (threadIdx.x == 0) first = out[40];  // <- intra-warp-race
  out[threadIdx.x] = first;
}

// run: <<<1, 32>>>(out=ints(32))
extern "C" __global__ void ballot_of_lanes_that_are_elsewhere(int* out) {
  int lane = threadIdx.x;
  unsigned there = 0;
  if (lane % 2) there = __ballot_sync(ALL, lane > 3);  // <- membermask
  out[lane] = there;
}

// run: <<<1, 32>>>(values=ramp(32), out=Empty(1))
extern "C" __global__ void tree_that_relies_on_lockstep(const float* values, float* out) {
  __shared__ volatile float sums[64];
  int lane = threadIdx.x;
  sums[lane] = values[lane];
  sums[lane + 32] = 0;
  sums[lane] += sums[lane + 16];  // <- intra-warp-race
  sums[lane] += sums[lane + 8];
  sums[lane] += sums[lane + 4];
  sums[lane] += sums[lane + 2];
  sums[lane] += sums[lane + 1];
  if (lane == 0) *out = sums[0];
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void syncwarp_without_the_own_lane(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  data[lane] = lane;
  __syncwarp(lane < 16 ? 0xffff0000u : 0xffff0000u);  // <- membermask
  out[lane] = data[lane];
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void syncwarp_of_the_other_half(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  data[lane] = lane;
  if (lane < 16) {
    __syncwarp(0x00ffffffu);  // <- membermask
    out[lane] = data[15 - lane];
  } else {
    out[lane] = data[lane];
  }
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void overwritten_while_lanes_read(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  data[lane] = lane;
  __syncwarp();
  float other = data[31 - lane];
  data[lane] = 2 * other;  // <- intra-warp-race
  __syncwarp();
  out[lane] = data[lane];
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void overwritten_behind_a_shuffle_of_something_else(float* out) {
  __shared__ float data[32];
  int lane = threadIdx.x;
  data[lane] = lane;
  __syncwarp();
  float other = data[31 - lane];
  data[lane] = __shfl_xor_sync(ALL, 2.0f * lane, 1);  // <- intra-warp-race
  __syncwarp();
  out[lane] = data[lane] + other;
}

// run: <<<1, 32>>>(out=ints(32))
extern "C" __global__ void match_with_half_a_mask(int* out) {
  int lane = threadIdx.x;
  out[lane] = __match_any_sync(0x0000ffffu, lane % 4);  // <- membermask
}

// run: <<<1, 32>>>(out=ints(32))
extern "C" __global__ void reduce_in_a_branch(int* out) {
  int lane = threadIdx.x, sum = 0;
  if (lane >= 8) sum = __reduce_add_sync(ALL, lane);  // <- membermask
  out[lane] = sum;
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void global_memory_between_lanes(float* out) {
  int lane = threadIdx.x;
  out[lane] = lane;
  float other = ((volatile float*)out)[31 - lane];  // <- intra-warp-race
  __syncwarp();
  out[lane] = other;
}

// run: <<<1, 64>>>(out=Empty(64))
extern "C" __global__ void syncwarp_in_one_branch_alone(float* out) {
  __shared__ float data[64];
  int t = threadIdx.x;
  data[t] = t;
  if (t % 32 < 16) {
    __syncwarp();  // <- membermask
    out[t] = data[t + 16];
  } else {
    out[t] = 1;
  }
}

// run: <<<1, 64>>>(out=ints(64), n=32)
extern "C" __global__ void shuffle_of_what_no_lane_has_written(int* out, int n) {
  int base;
  if (threadIdx.x < n) base = out[0];
  out[threadIdx.x] = __shfl_sync(ALL, base, 0);  // <- uninitialised-register
}
