// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of one block: up and down sweeps, double buffers, splits by bits, networks.

__global__ void blelloch_scan(int* out, const int* in) {
  __shared__ int sums[128];
  int t = threadIdx.x;
  sums[t] = in[t];
  __syncthreads();
  for (int step = 1; step < 128; step *= 2) {
    int at = (t + 1) * 2 * step - 1;
    if (at < 128) sums[at] += sums[at - step];
    __syncthreads();
  }
  if (t == 0) sums[127] = 0;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    int at = (t + 1) * 2 * step - 1;
    if (at < 128) {
      int left = sums[at - step];
      sums[at - step] = sums[at];
      sums[at] += left;
    }
    __syncthreads();
  }
  out[t] = sums[t];
}

__global__ void double_buffered_scan(float* out, const float* in) {
  __shared__ float sums[2][128];
  int t = threadIdx.x, from = 0;
  sums[0][t] = in[t];
  for (int step = 1; step < 128; step *= 2) {
    __syncthreads();
    sums[1 - from][t] = sums[from][t] + (t >= step ? sums[from][t - step] : 0.0f);
    from = 1 - from;
  }
  out[t] = sums[from][t];
}

__global__ void segmented_scan(int* out, const int* in, const int* starts) {
  int t = threadIdx.x, lane = t % 32;
  int value = in[t], start = starts[t];
  for (int step = 1; step < 32; step *= 2) {
    int below = __shfl_up_sync(0xffffffffu, value, step);
    int started = __shfl_up_sync(0xffffffffu, start, step);
    if (lane >= step && !start) {
      value += below;
      start = started;
    }
  }
  out[t] = value;
}

__global__ void keep_positive(int* out, int* count, const int* in) {
  __shared__ int kept[4];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  int value = in[t];
  unsigned ballot = __ballot_sync(0xffffffffu, value > 0);
  if (lane == 0) kept[warp] = __popc(ballot);
  __syncthreads();
  int base = 0;
  for (int w = 0; w < warp; ++w) base += kept[w];
  if (value > 0) out[base + __popc(ballot & ((1u << lane) - 1))] = value;
  if (t == 127) *count = base + __popc(ballot);
}

__global__ void bitonic_sort(int* out, const int* in) {
  __shared__ int values[128];
  int t = threadIdx.x;
  values[t] = in[t];
  for (int size = 2; size <= 128; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      int other = t ^ step;
      if (other > t) {
        int a = values[t], b = values[other];
        bool up = (t & size) == 0;
        if ((a > b) == up) {
          values[t] = b;
          values[other] = a;
        }
      }
    }
  }
  __syncthreads();
  out[t] = values[t];
}

__global__ void odd_even_sort(float* out, const float* in, int n) {
  extern __shared__ float values[];
  int t = threadIdx.x;
  if (t < n) values[t] = in[t];
  for (int round = 0; round < n; ++round) {
    __syncthreads();
    int left = 2 * t + (round & 1);
    if (left + 1 < n && values[left] > values[left + 1]) {
      float larger = values[left];
      values[left] = values[left + 1];
      values[left + 1] = larger;
    }
  }
  __syncthreads();
  if (t < n) out[t] = values[t];
}

__global__ void radix_sort(unsigned* out, const unsigned* in, int bits) {
  __shared__ unsigned values[64];
  __shared__ unsigned zeros[2];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  unsigned value = in[t];
  for (int bit = 0; bit < bits; ++bit) {
    bool one = value >> bit & 1;
    unsigned ballot = __ballot_sync(0xffffffffu, !one);
    if (lane == 0) zeros[warp] = __popc(ballot);
    __syncthreads();
    unsigned before = __popc(ballot & ((1u << lane) - 1)) + (warp ? zeros[0] : 0);
    values[one ? zeros[0] + zeros[1] + t - before : before] = value;
    __syncthreads();
    value = values[t];
  }
  out[t] = value;
}

__global__ void merge_by_rank(int* out, const int* a, const int* b, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= 2 * n) return;
  bool second = t >= n;
  const int* other = second ? a : b;
  int mine = second ? t - n : t, value = second ? b[mine] : a[mine];
  int low = 0, high = n;
  while (low < high) {
    int middle = (low + high) / 2;
    bool before = second ? other[middle] <= value : other[middle] < value;
    if (before)
      low = middle + 1;
    else
      high = middle;
  }
  out[mine + low] = value;
}
