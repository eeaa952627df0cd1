// SPDX-License-Identifier: Apache-2.0
// Sums and maxima: trees in shared memory, shuffles of whole and partial warps, atomics, votes.

__global__ void tree_sum(float* out, const float* in, int n) {
  extern __shared__ float partial[];
  int t = threadIdx.x;
  int i = blockIdx.x * blockDim.x + t;
  partial[t] = i < n ? in[i] : 0.0f;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = partial[0];
}

__device__ float warp_sum(float value, unsigned mask) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(mask, value, step);
  return value;
}

__global__ void shuffle_sum(float* out, const float* in, int n) {
  __shared__ float sums[32];
  int t = threadIdx.x;
  float value = 0.0f;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) value += in[i];
  value = warp_sum(value, 0xffffffffu);
  if (t % 32 == 0) sums[t / 32] = value;
  __syncthreads();
  if (t < 32) {
    value = t < blockDim.x / 32 ? sums[t] : 0.0f;
    value = warp_sum(value, 0xffffffffu);
    if (t == 0) out[blockIdx.x] = value;
  }
}

__global__ void half_warp_max(int* out, const int* in) {
  int lane = threadIdx.x % 32;
  int value = in[threadIdx.x];
  if (lane < 16) {
    for (int step = 8; step > 0; step /= 2)
      value = max(value, __shfl_xor_sync(0x0000ffffu, value, step));
  } else {
    for (int step = 8; step > 0; step /= 2)
      value = max(value, __shfl_xor_sync(0xffff0000u, value, step, 16));
  }
  out[threadIdx.x] = value;
}

__global__ void atomic_sum(int* total, const int* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(total, in[i]);
}

__global__ void redux_by_parity(int* out, const int* in) {
  unsigned mask = threadIdx.x & 1 ? 0xaaaaaaaau : 0x55555555u;
  out[threadIdx.x] = __reduce_add_sync(mask, in[threadIdx.x]);
}

__global__ void votes(int* out, const int* in) {
  int value = in[threadIdx.x];
  int positive = __syncthreads_count(value > 0);
  int any = __syncthreads_or(value > 8);
  int all = __syncthreads_and(value >= 0);
  out[threadIdx.x] = positive + 1000 * (any != 0) + 2000 * (all != 0);
}

__global__ void ballots(unsigned* out, const int* in) {
  int value = in[threadIdx.x];
  unsigned odd = __ballot_sync(0xffffffffu, value & 1);
  unsigned same = __match_any_sync(0xffffffffu, value);
  int agree;
  unsigned all = __match_all_sync(0xffffffffu, value, &agree);
  out[4 * threadIdx.x] = odd;
  out[4 * threadIdx.x + 1] = same;
  out[4 * threadIdx.x + 2] = all + agree;
  out[4 * threadIdx.x + 3] = __popc(__activemask() & ((1u << (threadIdx.x & 31)) - 1));
}

__global__ void inclusive_scan(int* out, const int* in) {
  __shared__ int sums[32];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  int value = in[t];
  for (int step = 1; step < 32; step *= 2) {
    int below = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += below;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  out[t] = value;
}

__global__ void ragged_max(float* out, const float* in, int n) {
  int i = threadIdx.x;
  float value = in[i];
  unsigned mask = __activemask();
  for (int step = 16; step > 0; step /= 2) {
    float other = __shfl_down_sync(mask, value, step);
    if ((i & 31) + step < (n - (i & ~31) < 32 ? n - (i & ~31) : 32)) value = fmaxf(value, other);
  }
  if ((i & 31) == 0) out[i / 32] = value;
}
