// SPDX-License-Identifier: Apache-2.0
// One product of a warp for every element type. Registers are filled as the PTX ISA lays them out:
// lane 4 g + t holds row g of A and column g of B.

typedef unsigned u32;

__device__ void store(float* out, int g, int t, float c0, float c1, float c2, float c3) {
  out[g * 8 + 2 * t] = c0;
  out[g * 8 + 2 * t + 1] = c1;
  out[(g + 8) * 8 + 2 * t] = c2;
  out[(g + 8) * 8 + 2 * t + 1] = c3;
}

// A has rows of k elements of `bytes` bytes, and B, transposed, too.
template <int kBytes, int kDepth>
__device__ void read(u32* a, u32* b, const u32* a_rows, const u32* b_rows, int g, int t) {
  constexpr int kRow = kDepth * kBytes / 4;
  for (int block = 0; block < kRow / 4; ++block) {
    a[2 * block] = a_rows[g * kRow + 4 * block + t];
    a[2 * block + 1] = a_rows[(g + 8) * kRow + 4 * block + t];
    b[block] = b_rows[g * kRow + 4 * block + t];
  }
}

__global__ void mma_tf32(float* out, const u32* a_rows, const u32* b_rows) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[4], b[2];
  read<4, 8>(a, b, a_rows, b_rows, g, t);
  float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  store(out, g, t, c[0], c[1], c[2], c[3]);
}

__global__ void mma_s8(float* out, const u32* a_rows, const u32* b_rows) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[4], b[2];
  read<1, 32>(a, b, a_rows, b_rows, g, t);
  int c[4] = {1, 1, 1, 1};
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  store(out, g, t, c[0], c[1], c[2], c[3]);
}

__global__ void mma_f16(u32* out, const u32* a_rows, const u32* b_rows) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[4], b[2];
  read<2, 16>(a, b, a_rows, b_rows, g, t);
  u32 c[2] = {0x3c003c00u, 0x3c003c00u};
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  out[g * 4 + t] = c[0];
  out[(g + 8) * 4 + t] = c[1];
}

__global__ void mma_bf16_short(float* out, const u32* a_rows, const u32* b_rows) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[2], b[1];
  read<2, 8>(a, b, a_rows, b_rows, g, t);
  float c[4] = {};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6},"
      " {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  store(out, g, t, c[0], c[1], c[2], c[3]);
}
