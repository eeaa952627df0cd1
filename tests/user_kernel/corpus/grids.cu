// SPDX-License-Identifier: Apache-2.0
// Grids: stencils with halos, pooling, bodies that attract each other, histograms by warp.

__global__ void heat(float* out, const float* in, int width, int height) {
  __shared__ float tile[18][18];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  int t = threadIdx.y * 16 + threadIdx.x;
  for (int i = t; i < 18 * 18; i += 256) {
    int tx = (int)blockIdx.x * 16 + i % 18 - 1, ty = (int)blockIdx.y * 16 + i / 18 - 1;
    bool inside = tx >= 0 && tx < width && ty >= 0 && ty < height;
    tile[i / 18][i % 18] = inside ? in[ty * width + tx] : 0.0f;
  }
  __syncthreads();
  if (x >= width || y >= height) return;
  int i = threadIdx.x + 1, j = threadIdx.y + 1;
  float around = tile[j][i - 1] + tile[j][i + 1] + tile[j - 1][i] + tile[j + 1][i];
  out[y * width + x] = tile[j][i] + 0.1f * (around - 4.0f * tile[j][i]);
}

__global__ void relax(float* out, const float* in, int rounds) {
  __shared__ float line[2][64];
  int t = threadIdx.x;
  line[0][t] = line[1][t] = in[t];
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    int from = round & 1;
    if (t > 0 && t < 63) line[1 - from][t] = 0.5f * (line[from][t - 1] + line[from][t + 1]);
    __syncthreads();
  }
  out[t] = line[rounds & 1][t];
}

__constant__ float weights[9];

__global__ void convolve(float* out, const float* in, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
  for (int j = -1; j <= 1; ++j)
    for (int i = -1; i <= 1; ++i) {
      int u = min(max(x + i, 0), width - 1), v = min(max(y + j, 0), height - 1);
      sum += weights[(j + 1) * 3 + i + 1] * in[v * width + u];
    }
  out[y * width + x] = sum;
}

__global__ void max_pool(float* out, const float* in, int width) {
  int x = threadIdx.x, y = blockIdx.x, wide = 2 * width;
  const float* corner = in + 2 * y * wide + 2 * x;
  float above = fmaxf(corner[0], corner[1]), below = fmaxf(corner[wide], corner[wide + 1]);
  out[y * width + x] = fmaxf(above, below);
}

__global__ void life(unsigned char* out, const unsigned char* in, int size) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  int neighbours = 0;
  for (int j = -1; j <= 1; ++j)
    for (int i = -1; i <= 1; ++i)
      if (i || j) neighbours += in[(y + j + size) % size * size + (x + i + size) % size];
  unsigned char alive = in[y * size + x];
  out[y * size + x] = neighbours == 3 || (alive && neighbours == 2);
}

__global__ void attraction(float* force, const float* place, int n) {
  extern __shared__ float tile[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float mine = place[i], sum = 0.0f;
  for (int first = 0; first < n; first += blockDim.x) {
    tile[threadIdx.x] = place[first + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < blockDim.x; ++j) {
      float distance = tile[j] - mine;
      sum += distance / (distance * distance + 0.01f);
    }
    __syncthreads();
  }
  force[i] = sum;
}

__global__ void matched_histogram(unsigned* bins, const int* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool there = i < n;
  unsigned members = __ballot_sync(0xffffffffu, there);
  if (!there) return;
  unsigned same = __match_any_sync(members, in[i]);
  if ((threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&bins[in[i]], __popc(same));
}

__global__ void warp_histograms(unsigned* bins, const int* in, int n) {
  __shared__ unsigned mine[4][16];
  int t = threadIdx.x, warp = t / 32;
  if (t < 64) mine[t / 16][t % 16] = 0;
  __syncthreads();
  for (int i = t; i < n; i += 128) atomicAdd(&mine[warp][in[i]], 1u);
  __syncthreads();
  if (t < 16) bins[t] = mine[0][t] + mine[1][t] + mine[2][t] + mine[3][t];
}

__global__ void largest(int* out, const int* in, int n) {
  __shared__ int best;
  if (threadIdx.x == 0) best = in[0];
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicMax(&best, in[i]);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(out, best);
}

__global__ void mandelbrot(int* out, float left, float top, float step) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  float a = left + x * step, b = top + y * step, u = 0.0f, v = 0.0f;
  int round = 0;
  while (round < 30 && u * u + v * v < 4.0f) {
    float next = u * u - v * v + a;
    v = 2.0f * u * v + b;
    u = next;
    ++round;
  }
  out[y * gridDim.x * blockDim.x + x] = round;
}

__global__ void xorshift(unsigned* out, const unsigned* seeds, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned state = seeds[i];
  for (int round = 0; round < rounds; ++round) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
  }
  out[i] = state;
}
