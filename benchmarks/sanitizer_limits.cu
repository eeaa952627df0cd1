// SPDX-License-Identifier: Apache-2.0
// Small kernels with an order that PTX guarantees and compute-sanitizer may not know. What is reported of
// them says how to read the reports of `benchmarks/sanitize.py`.
//
//   nvcc -arch=sm_90a -lineinfo -o limits benchmarks/sanitizer_limits.cu
//   for n in 0 1 2; do compute-sanitizer --tool racecheck ./limits $n; done
//   for n in 3 4 5; do compute-sanitizer --tool synccheck ./limits $n; done
#include <cstdio>
#include <cstdlib>

constexpr int kSemaphores = 4;
constexpr int kWords = 32;

__device__ unsigned address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
__device__ void init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count) : "memory");
}
__device__ void arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void wait(unsigned long long* barrier, int parity) {
  for (unsigned done = 0; !done;)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address(barrier)), "r"(parity)
        : "memory");
}
__device__ void load(int* to, const int* from, unsigned long long* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(full)),
               "r"(kWords * 4)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(address(to)),
      "l"(from), "r"(kWords * 4), "r"(address(full))
      : "memory");
}

enum class Release { kOneLane, kAllLanes };
enum class Write { kBulkCopy, kStores };

// Warp 0 writes a buffer again and again, and warp 1 reads it. Warp 1 releases it by one lane behind
// __syncwarp, or by all lanes.
template <Release kRelease, Write kWrite>
__global__ void reuse(const int* from, int* sum) {
  __shared__ alignas(128) int buffer[kWords];
  __shared__ unsigned long long full, empty;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, kRelease == Release::kOneLane ? 1 : 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int turn = 0; turn < kSemaphores; ++turn) {
      if (turn > 0) wait(&empty, (turn - 1) & 1);
      if (kWrite == Write::kBulkCopy) {
        load(buffer, from + turn * kWords, &full);
      } else {
        for (int i = 0; i < kWords; ++i) buffer[i] = from[turn * kWords + i];
        arrive(&full);
      }
    }
  if (threadIdx.x >= 32) {
    int found = 0;
    for (int turn = 0; turn < kSemaphores; ++turn) {
      wait(&full, turn & 1);
      found += buffer[lane];
      if (kRelease == Release::kOneLane) {
        __syncwarp();
        if (lane == 0) arrive(&empty);
      } else {
        arrive(&empty);
      }
    }
    sum[lane] = found;
  }
}

enum class Sites { kOne, kTwo };
enum class Other { kExits, kStays };

// Warps 1 and 2 meet at a barrier of 64 threads, in one place of the program or in two. Warp 0 does not
// take part. It exits, or stays until they are done.
template <Sites kSites, Other kOther>
__global__ void meet(int* sum) {
  __shared__ int values[64];
  __shared__ unsigned long long done;
  const int warp = threadIdx.x / 32, i = threadIdx.x - 32;
  if (threadIdx.x == 0) init(&done, 64);
  __syncthreads();
  if (warp == 0) {
    if (kOther == Other::kStays) wait(&done, 0);
    return;
  }
  values[i] = i;
  if (kSites == Sites::kOne) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else if (warp == 1) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    sum[64] = values[0];
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    sum[65] = values[1];
  }
  sum[i] = values[63 - i];
  arrive(&done);
}

int main(int count, char** words) {
  const int choice = count > 1 ? atoi(words[1]) : 0;
  int *from, *sum;
  cudaMallocManaged(&from, kSemaphores * kWords * sizeof(int));
  cudaMallocManaged(&sum, 66 * sizeof(int));
  for (int i = 0; i < kSemaphores * kWords; ++i) from[i] = i;
  switch (choice) {
    case 0:
      reuse<Release::kOneLane, Write::kBulkCopy><<<1, 64>>>(from, sum);
      break;
    case 1:
      reuse<Release::kAllLanes, Write::kBulkCopy><<<1, 64>>>(from, sum);
      break;
    case 2:
      reuse<Release::kOneLane, Write::kStores><<<1, 64>>>(from, sum);
      break;
    case 3:
      meet<Sites::kTwo, Other::kExits><<<1, 96>>>(sum);
      break;
    case 4:
      meet<Sites::kOne, Other::kExits><<<1, 96>>>(sum);
      break;
    case 5:
      meet<Sites::kTwo, Other::kStays><<<1, 96>>>(sum);
      break;
  }
  const cudaError_t error = cudaDeviceSynchronize();
  printf("case %d: %s, sum[0] = %d\n", choice, cudaGetErrorString(error), sum[0]);
  return error != cudaSuccess;
}
