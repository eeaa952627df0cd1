// SPDX-License-Identifier: Apache-2.0
// Arrays of a thread that lie side by side in its stack, and pointers into them.

// run: <<<1, 32>>>(out=Empty(32), n=3)
// gives: np.array_equal(out, 2 * np.arange(32) + 4 + n + n + 1 - 2 * n)
extern "C" __global__ void pointer_into_the_middle(float* out, int n) {
  float a[16], b[8];
  for (int i = 0; i < 16; ++i) a[i] = i + threadIdx.x;
  for (int i = 0; i < 8; ++i) b[i] = -2 * i;
  const float* p = a + 4;
  out[threadIdx.x] = p[n] + a[n + 1] + b[n];
}

struct Pair {
  int k;
  float v[4], w[4];
};

// run: <<<1, 32>>>(out=Empty(32), n=2)
// gives: np.array_equal(out, np.full(32, n + 2 * n + (4 + n) + (n + 1) + n))
extern "C" __global__ void structures_and_rows(float* out, int n) {
  Pair pair;
  pair.k = n;
  for (int i = 0; i < 4; ++i) pair.v[i] = i, pair.w[i] = 2 * i;
  float rows[2][4];
  for (int i = 0; i < 8; ++i) rows[i / 4][i % 4] = i;
  out[threadIdx.x] = pair.v[n] + pair.w[n] + rows[1][n] + rows[0][n + 1] + pair.k;
}

__device__ __noinline__ float total(const float* begin, const float* end) {
  float sum = 0;
  while (end != begin) sum += *--end;
  return sum;
}

// run: <<<1, 32>>>(out=Empty(32), n=8)
// gives: np.array_equal(out, np.full(32, 28 - 56))
extern "C" __global__ void backwards_from_the_end(float* out, int n) {
  float a[8], b[8];
  for (int i = 0; i < n; ++i) a[i] = i, b[i] = -2 * i;
  out[threadIdx.x] = total(a, a + n) + total(b, b + n);
}

// run: <<<1, 32>>>(out=Empty(32), n=5)
// gives: np.array_equal(out, np.arange(32) % 8 + n)
extern "C" __global__ void two_arrays_take_turns(float* out, int n) {
  float a[8], b[8], *from = a, *to = b;
  for (int i = 0; i < 8; ++i) a[i] = i;
#pragma unroll 1
  for (int turn = 0; turn < n; ++turn) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) to[i] = from[i] + 1;
    float* last = from;
    from = to;
    to = last;
  }
  out[threadIdx.x] = from[threadIdx.x % 8];
}
