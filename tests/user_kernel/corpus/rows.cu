// SPDX-License-Identifier: Apache-2.0
// Rows of a network: softmax in one pass, norms, losses, rotary embeddings, tables of embeddings.

__device__ float sum_of_warp(float value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__global__ void online_softmax(float* out, const float* in, int columns) {
  const float* row = in + blockIdx.x * columns;
  int lane = threadIdx.x;
  float largest = -3.0e38f, sum = 0.0f;
  for (int i = lane; i < columns; i += 32) {
    float larger = fmaxf(largest, row[i]);
    sum = sum * expf(largest - larger) + expf(row[i] - larger);
    largest = larger;
  }
  for (int step = 16; step; step /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, largest, step);
    float others = __shfl_xor_sync(0xffffffffu, sum, step);
    float larger = fmaxf(largest, other);
    sum = sum * expf(largest - larger) + others * expf(other - larger);
    largest = larger;
  }
  for (int i = lane; i < columns; i += 32)
    out[blockIdx.x * columns + i] = expf(row[i] - largest) / sum;
}

__global__ void rms_norm(float4* out, const float4* in, const float4* gain, int quads) {
  __shared__ float squares[4];
  int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = t; i < quads; i += 128) {
    float4 x = in[blockIdx.x * quads + i];
    sum += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
  }
  sum = sum_of_warp(sum);
  if (t % 32 == 0) squares[t / 32] = sum;
  __syncthreads();
  sum = squares[0] + squares[1] + squares[2] + squares[3];
  float scale = rsqrtf(sum / (4 * quads) + 1e-6f);
  for (int i = t; i < quads; i += 128) {
    float4 x = in[blockIdx.x * quads + i], g = gain[i];
    out[blockIdx.x * quads + i] =
        make_float4(x.x * scale * g.x, x.y * scale * g.y, x.z * scale * g.z, x.w * scale * g.w);
  }
}

__global__ void welford(float* mean_out, float* variance_out, const float* in, int columns) {
  int lane = threadIdx.x, row = blockIdx.x * blockDim.y + threadIdx.y;
  float mean = 0.0f, squares = 0.0f, count = 0.0f;
  for (int i = lane; i < columns; i += 32) {
    float x = in[row * columns + i], delta = x - mean;
    count += 1.0f;
    mean += delta / count;
    squares += delta * (x - mean);
  }
  for (int step = 16; step; step /= 2) {
    float other_mean = __shfl_down_sync(0xffffffffu, mean, step);
    float other_squares = __shfl_down_sync(0xffffffffu, squares, step);
    float other_count = __shfl_down_sync(0xffffffffu, count, step);
    float both = count + other_count, delta = other_mean - mean;
    if (both > 0.0f) {
      mean += delta * other_count / both;
      squares += other_squares + delta * delta * count * other_count / both;
      count = both;
    }
  }
  if (lane == 0) {
    mean_out[row] = mean;
    variance_out[row] = squares / columns;
  }
}

__global__ void cross_entropy(float* loss, const float* logits, const int* target, int columns) {
  __shared__ float scratch[64];
  const float* row = logits + blockIdx.x * columns;
  int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = t; i < columns; i += 64) sum += expf(row[i]);
  scratch[t] = sum;
  __syncthreads();
  if (t < 32) {
    sum = sum_of_warp(scratch[t] + scratch[t + 32]);
    if (t == 0) loss[blockIdx.x] = logf(sum) - row[target[blockIdx.x]];
  }
}

__global__ void argmax(int* out, const float* in, int columns) {
  __shared__ float values[64];
  __shared__ int places[64];
  const float* row = in + blockIdx.x * columns;
  int t = threadIdx.x, place = t;
  for (int i = t + 64; i < columns; i += 64)
    if (row[i] > row[place]) place = i;
  values[t] = row[place];
  places[t] = place;
  __syncthreads();
  for (int step = 32; step; step /= 2) {
    if (t < step && values[t + step] > values[t]) {
      values[t] = values[t + step];
      places[t] = places[t + step];
    }
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = places[0];
}

__global__ void rotary(float* out, const float* in, const float* angle, int half) {
  int i = threadIdx.x, row = blockIdx.x;
  float sine, cosine;
  sincosf(angle[row * half + i], &sine, &cosine);
  float x = in[row * 2 * half + i], y = in[row * 2 * half + half + i];
  out[row * 2 * half + i] = x * cosine - y * sine;
  out[row * 2 * half + half + i] = y * cosine + x * sine;
}

__global__ void gather_rows(float2* out, const float2* table, const int* index, int pairs) {
  for (int i = threadIdx.x; i < pairs; i += blockDim.x)
    out[blockIdx.x * pairs + i] = table[index[blockIdx.x] * pairs + i];
}

__global__ void dot_product(float* out, float* partial, unsigned* ticket, const float* a,
                            const float* b, int n) {
  __shared__ float sums[2];
  __shared__ bool last;
  int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = blockIdx.x * 64 + t; i < n; i += gridDim.x * 64) sum += a[i] * b[i];
  sum = sum_of_warp(sum);
  if (t % 32 == 0) sums[t / 32] = sum;
  __syncthreads();
  if (t == 0) {
    partial[blockIdx.x] = sums[0] + sums[1];
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && t == 0) {
    float total = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) total += partial[b];
    *out = total;
  }
}
