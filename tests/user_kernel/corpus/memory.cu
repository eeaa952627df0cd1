// SPDX-License-Identifier: Apache-2.0
// Memories: tiles of two dimensions, histograms, locals, constants, module variables, pointers.

__constant__ float filter[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
__device__ int visits;
__device__ int offsets[4] = {10, 20, 30, 40};

__global__ void transpose(float* out, const float* in, int width, int height) {
  __shared__ float tile[16][17];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];
  __syncthreads();
  x = blockIdx.y * 16 + threadIdx.x;
  y = blockIdx.x * 16 + threadIdx.y;
  if (x < height && y < width) out[y * height + x] = tile[threadIdx.x][threadIdx.y];
}

__global__ void box(int* out) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  int z = blockIdx.z * blockDim.z + threadIdx.z;
  int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
  out[(z * height + y) * width + x] = x + 100 * y + 10000 * z;
}

__global__ void histogram(unsigned* bins, const unsigned char* in, int n) {
  __shared__ unsigned mine[64];
  for (int b = threadIdx.x; b < 64; b += blockDim.x) mine[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[in[i] % 64], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 64; b += blockDim.x) atomicAdd(&bins[b], mine[b]);
}

__global__ void stencil(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int k = 0; k < 5; ++k) {
    int at = i + k - 2;
    if (at >= 0 && at < n) sum += filter[k] * in[at];
  }
  out[i] = sum;
  atomicAdd(&visits, 1);
}

__global__ void local_sort(int* out, const int* in) {
  int mine[8];
  for (int k = 0; k < 8; ++k) mine[k] = in[8 * threadIdx.x + k];
  for (int k = 1; k < 8; ++k) {
    int value = mine[k], j = k;
    while (j > 0 && mine[j - 1] > value) {
      mine[j] = mine[j - 1];
      --j;
    }
    mine[j] = value;
  }
  for (int k = 0; k < 8; ++k) out[8 * threadIdx.x + k] = mine[k];
}

__global__ void either_pointer(float* out, const float* in, int from_shared) {
  __shared__ float staged[64];
  staged[threadIdx.x] = 2.0f * in[threadIdx.x];
  __syncthreads();
  const float* from = from_shared > (int)threadIdx.x ? staged : in;
  out[threadIdx.x] = from[(threadIdx.x + 1) % blockDim.x] + offsets[threadIdx.x & 3];
}

struct Table {
  int values[16];
  float scale;
};

__global__ void parameter_table(float* out, const int* index, Table table) {
  out[threadIdx.x] = table.values[index[threadIdx.x]] * table.scale;
}

__global__ void choose(int* out, const int* which) {
  int t = threadIdx.x, value = t;
  switch (which[t]) {
    case 0:
      value = t * 3;
      break;
    case 1:
      value = t - 7;
      break;
    case 2:
      value = t ^ 21;
      break;
    case 3:
      value = t << 2;
      break;
    case 4:
      value = -t;
      break;
    case 5:
      value = t / 3;
      break;
    case 6:
      value = t % 5;
      break;
    case 7:
      value = t * t;
      break;
    case 8:
      value = 99;
      break;
  }
  out[t] = value;
}

__global__ void lanes(unsigned* out) {
  unsigned lt, ge, eq, start = clock();
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
  asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
  asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(eq));
  out[4 * threadIdx.x] = lt;
  out[4 * threadIdx.x + 1] = ge;
  out[4 * threadIdx.x + 2] = eq;
  out[4 * threadIdx.x + 3] = (unsigned)clock() > start;
}

__global__ void last_block_sum(int* out, int* partial, unsigned* ticket, const int* in) {
  __shared__ int sum;
  __shared__ bool last;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += partial[b];
    out[0] = total;
  }
}

__global__ void speak(const float* in, int n) {
  int i = threadIdx.x;
  assert(n < 100);
  if (i < n) printf("%d of %u: %.2f %s%%\n", i, n, in[i], i % 2 ? "odd" : "even");
}
