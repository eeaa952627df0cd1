// SPDX-License-Identifier: Apache-2.0
// Adds up the numbers of every block.

__global__ void block_sum(float* out, const float* in) {
  __shared__ float partial[256];
  int t = threadIdx.x;
  partial[t] = in[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
  }
  if (t == 0) out[blockIdx.x] = partial[0];
}
