// SPDX-License-Identifier: Apache-2.0
// Addresses, arrays and values that are not what they were taken for.

extern "C" __device__ int printf(const char*, ...);

// run: <<<2, 64>>>(out=Empty(100), a=ramp(100))
extern "C" __global__ void load_past_the_end(float* out, const float* a) {
  int i = blockIdx.x * 64 + threadIdx.x;
  float value = __shfl_sync(0xffffffffu, a[i], threadIdx.x % 32);  // <- global-out-of-bounds
  if (i < 100) out[i] = value;
}

// run: <<<2, 64>>>(out=Empty(100), a=ramp(128))
extern "C" __global__ void store_past_the_end(float* out, const float* a) {
  int i = blockIdx.x * 64 + threadIdx.x;
  out[i] = a[i];  // <- global-out-of-bounds
}

// run: <<<1, 32>>>(out=Empty(128), a=ramp(160))
extern "C" __global__ void vector_at_an_odd_place(float4* out, const float* a) {
  out[threadIdx.x] = *(const float4*)(a + 4 * threadIdx.x + 1);  // <- global-misaligned
}

// run: <<<1, 32>>>(out=Empty(32), a=Empty(32))
extern "C" __global__ void memory_nobody_wrote(float* out, const float* a) {
  out[threadIdx.x] = a[threadIdx.x];  // <- uninitialised-global
}

// run: <<<1, 32>>>(out=Empty(32), a=ramp(32), b=ramp(32))
extern "C" __global__ void from_one_array_into_the_next(float* out, const float* a, const float* b) {
  long between = b - a;
  out[threadIdx.x] = a[threadIdx.x + between];  // <- stray-address
}

// run: <<<1, 32>>>(data=ramp(32), out=Empty(32))
extern "C" __global__ void read_only_load_of_what_was_stored(float* data, float* out) {
  data[threadIdx.x] = 2;
  __syncwarp();
  out[threadIdx.x] = __ldg(data + threadIdx.x);  // <- read-only-load
}

// run: <<<2, 32>>>(a=ramp(64), b=again("a"))
extern "C" __global__ void stencil_in_place(const float* a, float* b) {
  int i = blockIdx.x * 32 + threadIdx.x;
  float left = i > 0 ? a[i - 1] : 0;
  b[i] = left + 1;  // <- cta-write-conflict
}

// run: <<<1, 64>>>(a=ramp(64), b=again("a"))
extern "C" __global__ void reverse_in_place(const float* a, float* b) {
  b[threadIdx.x] = a[63 - threadIdx.x];  // <- race
}

// run: <<<1, 32>>>(out=Empty(32), n=9)
extern "C" __global__ void past_the_end_of_a_local_array(float* out, int n) {
  float mine[8];
  for (int i = 0; i < 8; ++i) mine[i] = i + threadIdx.x;
  out[threadIdx.x] = mine[(threadIdx.x + n) % (n + 1)];  // <- local-out-of-bounds
}

// run: <<<1, 32>>>(out=Empty(32), n=8)
extern "C" __global__ void from_one_local_array_into_the_next(float* out, int n) {
  float mine[8], more[8];
  for (int i = 0; i < 8; ++i) {
    mine[i] = i + threadIdx.x;
    more[i] = -i;
  }
  out[threadIdx.x] = mine[threadIdx.x % (n + 1)] + more[threadIdx.x % n];  // <- stray-address
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void shared_vector_at_an_odd_place(float* out) {
  __shared__ alignas(16) float data[160];
  for (int i = threadIdx.x; i < 160; i += 32) data[i] = i;
  __syncwarp();
  float4 v = *(float4*)&data[4 * threadIdx.x + 2];  // <- shared-misaligned
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

// run: <<<2, 64>>>(out=Empty(64))
extern "C" __global__ void blocks_store_to_the_same_place(float* out) {
  out[threadIdx.x] = blockIdx.x;  // <- cta-write-conflict
}

// run: <<<1, 64>>>(data=floats(64), out=Empty(64))
extern "C" __global__ void global_memory_without_a_barrier(float* data, float* out) {
  data[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = ((volatile float*)data)[63 - threadIdx.x];  // <- race
}

// run: <<<1, 32>>>(out=Empty(32), a=ramp(32), far=1000000)
extern "C" __global__ void index_far_away(float* out, const float* a, int far) {
  out[threadIdx.x] = a[far * 1000 + threadIdx.x];  // <- global-out-of-bounds
}

// run: <<<1, 32>>>(out=Empty(32), null=0)
extern "C" __global__ void null_pointer(float* out, const float* null) {
  out[threadIdx.x] = null[threadIdx.x];  // <- global-out-of-bounds
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void address_in_no_memory(float* out) {
  *(float*)(0x87654320 + 4 * threadIdx.x) = 42;  // <- global-out-of-bounds
  out[threadIdx.x] = 1;
}

// run: <<<1, 32>>>(out=Empty(32), a=ramp(32))
extern "C" __global__ void global_pointer_taken_for_a_shared_one(float* out, const float* a) {
  float value;
  unsigned address = (unsigned)(unsigned long long)(a + threadIdx.x);
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));  // <- shared-out-of-bounds
  out[threadIdx.x] = value;
}

// run: <<<1, 32>>>(out=Empty(32))
extern "C" __global__ void shared_pointer_taken_for_a_global_one(float* out) {
  __shared__ float data[32];
  data[threadIdx.x] = threadIdx.x;
  __syncwarp();
  float value, *place = &data[threadIdx.x];
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(place));  // <- global-out-of-bounds
  out[threadIdx.x] = value;
}

// run: <<<1, 32>>>(x=2.5)
extern "C" __global__ void printf_of_a_float_as_an_integer(float x) {
  if (threadIdx.x == 0) printf("x is %d\n", x);  // <- printf-format
}

// run: <<<1, 32>>>(n=7)
extern "C" __global__ void printf_of_an_integer_as_a_float(int n) {
  if (threadIdx.x == 0) printf("n is %f\n", n);  // <- printf-format
}

// run: <<<1, 32>>>(n=7)
extern "C" __global__ void printf_with_an_argument_too_few(int n) {
  if (threadIdx.x == 0) printf("%d of %d\n", n);  // <- printf-format
}

// run: <<<2, 64>>>(sum=ints(1), out=ints(128))
extern "C" __global__ void sum_read_while_others_swap(int* sum, int* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int old = *sum, assumed;
  do {
    assumed = old;
    old = atomicCAS(sum, assumed, assumed + i);
  } while (assumed != old);
  out[i] = *sum;  // <- cta-write-conflict
}
