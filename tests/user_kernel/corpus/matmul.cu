// SPDX-License-Identifier: Apache-2.0
// Products of matrices and rows of a network: naive, tiled, in double, softmax, layer norm.

__global__ void naive_matmul(float* c, const float* a, const float* b, int m, int n, int k) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || col >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
  c[row * n + col] = sum;
}

__global__ void tiled_matmul(float* c, const float* a, const float* b, int m, int n, int k) {
  __shared__ float as[16][16], bs[16][16];
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
  float sum = 0.0f;
  for (int base = 0; base < k; base += 16) {
    as[ty][tx] = row < m && base + tx < k ? a[row * k + base + tx] : 0.0f;
    bs[ty][tx] = col < n && base + ty < k ? b[(base + ty) * n + col] : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += as[ty][i] * bs[i][tx];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
}

__global__ void double_matmul(double* c, const double* a, const double* b, int n) {
  int col = threadIdx.x, row = threadIdx.y;
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += a[row * n + i] * b[i * n + col];
  c[row * n + col] = sqrt(fabs(sum)) / (1.0 + sum * sum);
}

__global__ void softmax(float* out, const float* in, int columns) {
  __shared__ float scratch[64];
  const float* row = in + blockIdx.x * columns;
  int t = threadIdx.x;
  float largest = -3.0e38f;
  for (int i = t; i < columns; i += blockDim.x) largest = fmaxf(largest, row[i]);
  scratch[t] = largest;
  __syncthreads();
  for (int step = blockDim.x / 2; step; step /= 2) {
    if (t < step) scratch[t] = fmaxf(scratch[t], scratch[t + step]);
    __syncthreads();
  }
  largest = scratch[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = t; i < columns; i += blockDim.x) sum += expf(row[i] - largest);
  scratch[t] = sum;
  __syncthreads();
  for (int step = blockDim.x / 2; step; step /= 2) {
    if (t < step) scratch[t] += scratch[t + step];
    __syncthreads();
  }
  for (int i = t; i < columns; i += blockDim.x)
    out[blockIdx.x * columns + i] = expf(row[i] - largest) / scratch[0];
}

__global__ void layer_norm(float* out, const float* in, const float* gain, int columns) {
  int lane = threadIdx.x, row = blockIdx.x * blockDim.y + threadIdx.y;
  const float* x = in + row * columns;
  float sum = 0.0f, squares = 0.0f;
  for (int i = lane; i < columns; i += 32) {
    sum += x[i];
    squares += x[i] * x[i];
  }
  for (int step = 16; step; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
    squares += __shfl_xor_sync(0xffffffffu, squares, step);
  }
  float mean = sum / columns, variance = squares / columns - mean * mean;
  for (int i = lane; i < columns; i += 32)
    out[row * columns + i] = (x[i] - mean) * rsqrtf(variance + 1e-5f) * gain[i];
}

__global__ void activations(float* out, const float* in) {
  float x = in[threadIdx.x];
  out[8 * threadIdx.x] = 0.5f * x * (1.0f + erff(x * 0.70710678f));
  out[8 * threadIdx.x + 1] = x / (1.0f + __expf(-x));
  out[8 * threadIdx.x + 2] = tanhf(x);
  out[8 * threadIdx.x + 3] = sinf(x) + cosf(x);
  out[8 * threadIdx.x + 4] = powf(fabsf(x), 1.5f);
  out[8 * threadIdx.x + 5] = logf(fabsf(x) + 1.0f);
  out[8 * threadIdx.x + 6] = floorf(x) + ceilf(x) + rintf(x) + truncf(x);
  out[8 * threadIdx.x + 7] = fmodf(x, 0.3f);
}
