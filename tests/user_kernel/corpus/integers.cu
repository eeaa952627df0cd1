// SPDX-License-Identifier: Apache-2.0
// Integers and bits, 16-bit floats, and groups of lanes.

__global__ void bits(int* out, const int* in) {
  int x = in[threadIdx.x];
  int* mine = out + 8 * threadIdx.x;
  mine[0] = __ffs(x);
  mine[1] = __clz(x);
  mine[2] = __popc(x);
  mine[3] = __brev(x);
  mine[4] = __dp4a(x, 0x01020304, 7);
  mine[5] = __sad(x, 1000, 5);
  mine[6] = (int)__umulhi((unsigned)x, 0x9e3779b9u);
  mine[7] = __byte_perm(x, 0x12345678, 0x6152);
}

__global__ void wide(long long* out, const long long* in) {
  long long x = in[threadIdx.x];
  out[4 * threadIdx.x] = __mul64hi(x, 0x123456789abcdefLL);
  out[4 * threadIdx.x + 1] = (long long)__umul64hi((unsigned long long)x, ~0ull / 3);
  out[4 * threadIdx.x + 2] = x / 1000003;
  out[4 * threadIdx.x + 3] = x % 12345;
}

__global__ void compact(int* out, int* count, const int* in) {
  int lane = threadIdx.x & 31;
  int value = in[blockIdx.x * blockDim.x + threadIdx.x];
  unsigned keep = __ballot_sync(0xffffffffu, value & 1);
  int base = 0;
  if (keep && lane == __ffs(keep) - 1) base = atomicAdd(count, __popc(keep));
  base = __shfl_sync(0xffffffffu, base, keep ? __ffs(keep) - 1 : 0);
  if (value & 1) out[base + __popc(keep & ((1u << lane) - 1))] = value;
}

typedef unsigned short half;

__device__ half fma_f16(half a, half b, half c) {
  half d;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(d) : "h"(a), "h"(b), "h"(c));
  return d;
}

__global__ void halves(half* out, const half* a, const half* b) {
  int i = threadIdx.x;
  half sum, product, larger, smaller, minus, size;
  asm("add.f16 %0, %1, %2;" : "=h"(sum) : "h"(a[i]), "h"(b[i]));
  asm("mul.f16 %0, %1, %2;" : "=h"(product) : "h"(a[i]), "h"(b[i]));
  asm("max.f16 %0, %1, %2;" : "=h"(larger) : "h"(a[i]), "h"(b[i]));
  asm("min.f16 %0, %1, %2;" : "=h"(smaller) : "h"(a[i]), "h"(b[i]));
  asm("neg.f16 %0, %1;" : "=h"(minus) : "h"(a[i]));
  asm("abs.f16 %0, %1;" : "=h"(size) : "h"(a[i]));
  int less;
  asm("{.reg .pred p; setp.lt.f16 p, %1, %2; selp.s32 %0, 1, 0, p;}"
      : "=r"(less)
      : "h"(a[i]), "h"(b[i]));
  half* mine = out + 8 * i;
  mine[0] = sum;
  mine[1] = product;
  mine[2] = larger;
  mine[3] = smaller;
  mine[4] = minus;
  mine[5] = size;
  mine[6] = fma_f16(a[i], b[i], a[i]);
  mine[7] = (half)less;
}

__global__ void bfloats(unsigned* out, const unsigned* a, const unsigned* b) {
  int i = threadIdx.x;
  unsigned larger, minus, total;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a[i]), "r"(b[i]));
  asm("neg.bf16x2 %0, %1;" : "=r"(minus) : "r"(a[i]));
  asm("fma.rn.bf16x2 %0, %1, %2, %1;" : "=r"(total) : "r"(a[i]), "r"(b[i]));
  unsigned less;
  asm("{.reg .pred p; .reg .b16 x, y; mov.b32 {x, _}, %1; mov.b32 {y, _}, %2;"
      " setp.lt.bf16 p, x, y; selp.u32 %0, 1, 0, p;}"
      : "=r"(less)
      : "r"(a[i]), "r"(b[i]));
  out[4 * i] = larger;
  out[4 * i + 1] = minus;
  out[4 * i + 2] = total;
  out[4 * i + 3] = less;
}
