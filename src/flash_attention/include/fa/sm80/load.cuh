// SPDX-License-Identifier: Apache-2.0
// Global to shared memory: a tile of a tensor's rows from `first` on. Threads take the chunks of a row
// side by side, then the next rows.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm80 {

template <class Config, class Tile, class Tensor>
__device__ void load_tile(u32 tile, const Tensor& tensor, int first) {
  constexpr int kRowsPerPass = Config::kNWarps * kWarpSize / Tile::kRunChunks;
  static_assert(kRowsPerPass <= Tile::kRows, "threads load no more rows at a time than a tile has");
  const int row = threadIdx.x / Tile::kRunChunks, chunk = threadIdx.x % Tile::kRunChunks;
  const typename Config::Address::template Cursor<Tile> thread(tile, row, chunk);
#pragma unroll
  for (int c = 0; c < Tile::kRowChunks; c += Tile::kRunChunks) {
    const char* source = tensor.address(first + row) + (chunk + c) * kChunkBytes;
#pragma unroll
    for (int r = 0; r < Tile::kRows; r += kRowsPerPass) {
      tensor.load(thread.at(r, c), source, first + row + r, chunk + c);
      source += kRowsPerPass * tensor.row_bytes();
    }
  }
}

template <class T>
concept CacheSlot = requires(u32 smem, void* gmem, ptx::Chunk chunk) {
  T::load_async(smem, gmem);
  T::load_async_or_zero(smem, gmem, true);
  T::store(gmem, T::load(gmem));
  T::store(gmem, smem);
};

template <class T, class Cache>
concept CopySlot = requires(u32 smem, const void* gmem) {
  T::template chunk<Cache>(smem, gmem);
  T::template chunk_or_zero<Cache>(smem, gmem, true);
  T::commit();
  T::template wait<1>();
};

template <class T>
concept RowStrideSlot = requires(i64 stride) { T::elements(stride); };

}  // namespace fa::sm80

namespace fa::sm80::cache {

// Global memory accesses without hints.
struct DefaultPolicy {
  static __device__ void load_async(u32 smem, const void* gmem) { ptx::cp_async_16(smem, gmem); }
  static __device__ void load_async_or_zero(u32 smem, const void* gmem, bool inside) {
    ptx::cp_async_16_or_zero(smem, gmem, inside);
  }
  static __device__ ptx::Chunk load(const void* gmem) { return ptx::ld_global_16(gmem); }
  static __device__ void store(void* gmem, ptx::Chunk c) { ptx::st_global_16(gmem, c); }
  static __device__ void store(void* gmem, u32 pair) { ptx::st_global_4(gmem, pair); }
};

// L2 fetches whole lines for the loads, and nothing of this kernel is kept in L1: no byte is read
// from there twice.
struct Hinted {
  static __device__ void load_async(u32 smem, const void* gmem) {
    ptx::cp_async_16_prefetch_128(smem, gmem);
  }
  static __device__ void load_async_or_zero(u32 smem, const void* gmem, bool inside) {
    ptx::cp_async_16_or_zero_prefetch_128(smem, gmem, inside);
  }
  static __device__ ptx::Chunk load(const void* gmem) { return ptx::ld_global_16_no_l1(gmem); }
  static __device__ void store(void* gmem, ptx::Chunk c) { ptx::st_global_16_no_l1(gmem, c); }
  static __device__ void store(void* gmem, u32 pair) { ptx::st_global_4_no_l1(gmem, pair); }
};

}  // namespace fa::sm80::cache

namespace fa::sm80::copy {

// Copies from global to shared memory through registers: the data has arrived when the thread continues.
struct PlainCopy {
  template <class Cache>
  static __device__ void chunk(u32 smem, const void* gmem) {
    ptx::st_shared_16(smem, Cache::load(gmem));
  }

  template <class Cache>
  static __device__ void chunk_or_zero(u32 smem, const void* gmem, bool inside) {
    ptx::st_shared_16(smem, inside ? Cache::load(gmem) : ptx::Chunk{});
  }

  static __device__ void commit() {}

  template <int Pending>
  static __device__ void wait() {}
};

// Copies from global to shared memory by cp.async; the copy runs in the background until a wait.
struct AsyncCopy {
  template <class Cache>
  static __device__ void chunk(u32 smem, const void* gmem) {
    Cache::load_async(smem, gmem);
  }

  // Stores zeros unless `inside`; the address must be readable either way.
  template <class Cache>
  static __device__ void chunk_or_zero(u32 smem, const void* gmem, bool inside) {
    Cache::load_async_or_zero(smem, gmem, inside);
  }

  static __device__ void commit() { ptx::cp_async_commit(); }

  template <int Pending>
  static __device__ void wait() {
    ptx::cp_async_wait<Pending>();
  }
};

}  // namespace fa::sm80::copy

namespace fa::sm80::row_stride {

// The distance between two rows of a tensor is a run-time argument.
struct FromArgs {
  static __device__ i64 elements(i64 from_args) { return from_args; }
};

// The distance between two rows is compiled in: row offsets become immediates of the copies. The
// host checks it against the tensors.
template <int Elements>
struct Fixed {
  static __device__ i64 elements(i64) { return Elements; }
};

}  // namespace fa::sm80::row_stride
