// SPDX-License-Identifier: Apache-2.0
// Products in steps: a tile in registers, vectors, two buffers, asynchronous copies, split k, mma.

#define TILE 32
#define DEPTH 8

__global__ void register_tile_matmul(float* c, const float* a, const float* b, int n) {
  __shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
  int t = threadIdx.x, x = t % 8 * 4, y = t / 8 * 4;
  int row = blockIdx.y * TILE, col = blockIdx.x * TILE;
  float sum[4][4] = {};
  for (int k = 0; k < n; k += DEPTH) {
    for (int i = t; i < DEPTH * TILE; i += 64) {
      as[i % DEPTH][i / DEPTH] = a[(row + i / DEPTH) * n + k + i % DEPTH];
      bs[i / TILE][i % TILE] = b[(k + i / TILE) * n + col + i % TILE];
    }
    __syncthreads();
    for (int d = 0; d < DEPTH; ++d)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += as[d][y + i] * bs[d][x + j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) c[(row + y + i) * n + col + x + j] = sum[i][j];
}

__global__ void vector_matmul(float4* c, const float4* a, const float4* b, int n) {
  __shared__ float as[DEPTH][TILE];
  __shared__ float4 bs[DEPTH][TILE / 4];
  int t = threadIdx.x, x = t % 8, y = t / 8 * 4, quads = n / 4;
  int row = blockIdx.y * TILE, quad = blockIdx.x * (TILE / 4);
  float4 sum[4] = {};
  for (int k = 0; k < n; k += DEPTH) {
    float4 line = a[(row + t / 2) * quads + k / 4 + t % 2];
    as[4 * (t % 2)][t / 2] = line.x;
    as[4 * (t % 2) + 1][t / 2] = line.y;
    as[4 * (t % 2) + 2][t / 2] = line.z;
    as[4 * (t % 2) + 3][t / 2] = line.w;
    bs[t / 8][t % 8] = b[(k + t / 8) * quads + quad + t % 8];
    __syncthreads();
    for (int d = 0; d < DEPTH; ++d) {
      float4 right = bs[d][x];
      for (int i = 0; i < 4; ++i) {
        float left = as[d][y + i];
        sum[i].x += left * right.x;
        sum[i].y += left * right.y;
        sum[i].z += left * right.z;
        sum[i].w += left * right.w;
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) c[(row + y + i) * quads + quad + x] = sum[i];
}

__global__ void two_buffer_matmul(float* c, const float* a, const float* b, int n) {
  __shared__ float as[2][16][17], bs[2][16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  as[0][y][x] = a[row * n + x];
  bs[0][y][x] = b[y * n + col];
  __syncthreads();
  float sum = 0.0f;
  for (int k = 0; k < n; k += 16) {
    int now = k / 16 % 2;
    if (k + 16 < n) {
      as[1 - now][y][x] = a[row * n + k + 16 + x];
      bs[1 - now][y][x] = b[(k + 16 + y) * n + col];
    }
    for (int i = 0; i < 16; ++i) sum += as[now][y][i] * bs[now][i][x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}

__device__ void copy_16(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
      "l"(global)
      : "memory");
}

__global__ void async_matmul(float* c, const float* a, const float* b, int n) {
  __shared__ alignas(16) float as[2][16][16], bs[2][16][16];
  int t = threadIdx.x, y = t / 4, x = t % 4 * 4;
  int row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  copy_16(&as[0][y][x], a + row * n + x);
  copy_16(&bs[0][y][x], b + y * n + col);
  asm volatile("cp.async.commit_group;" ::: "memory");
  float sum[4] = {};
  for (int k = 0; k < n; k += 16) {
    int now = k / 16 % 2;
    if (k + 16 < n) {
      copy_16(&as[1 - now][y][x], a + row * n + k + 16 + x);
      copy_16(&bs[1 - now][y][x], b + (k + 16 + y) * n + col);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 4; ++j) sum[j] += as[now][y][i] * bs[now][i][x + j];
    __syncthreads();
  }
  for (int j = 0; j < 4; ++j) c[row * n + col + j] = sum[j];
}

__global__ void split_k_matmul(float* c, const float* a, const float* b, int n, int part) {
  int x = threadIdx.x, y = threadIdx.y, first = blockIdx.z * part;
  int row = blockIdx.y * blockDim.y + y, col = blockIdx.x * blockDim.x + x;
  float sum = 0.0f;
  for (int k = first; k < first + part; ++k) sum += a[row * n + k] * b[k * n + col];
  atomicAdd(&c[row * n + col], sum);
}

__global__ void matrix_times_vector(float* out, const float* a, const float* x, int columns) {
  int lane = threadIdx.x, row = blockIdx.x * blockDim.y + threadIdx.y;
  float sum = 0.0f;
  for (int i = lane; i < columns; i += 32) sum += a[row * columns + i] * x[i];
  for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) out[row] = sum;
}

__global__ void half_matmul(float* c, const unsigned short* a, const unsigned short* b) {
  __shared__ alignas(16) unsigned short as[16][24], bs[16][24];
  int t = threadIdx.x, row = t / 2, col = t % 2 * 8;
  *(uint4*)&as[row][col] = *(const uint4*)(a + row * 16 + col);
  *(uint4*)&bs[row][col] = *(const uint4*)(b + row * 16 + col);
  __syncwarp();
  unsigned l[4], r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(l[0]), "=r"(l[1]), "=r"(l[2]), "=r"(l[3])
               : "r"((unsigned)__cvta_generic_to_shared(&as[t % 16][t / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(&bs[t % 16][t / 16 * 8])));
  for (int side = 0; side < 2; ++side) {
    float d[4] = {};
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7},"
        " {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[2 * side]), "r"(r[2 * side + 1]));
    for (int i = 0; i < 4; ++i)
      c[(t / 4 + 8 * (i / 2)) * 16 + 8 * side + 2 * (t % 4) + i % 2] = d[i];
  }
}
