// SPDX-License-Identifier: Apache-2.0
// C = A B^T for square matrices, in tiles of 32 x 32.

constexpr int kTile = 32;

__global__ void tiled_matmul(float* c, const float* a, const float* b, int n) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
  float sum = 0.0f;
  for (int first = 0; first < n; first += kTile) {
    a_tile[y][x] = a[row * n + first + x];
    b_tile[y][x] = b[(blockIdx.x * kTile + y) * n + first + x];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += a_tile[y][i] * b_tile[x][i];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
