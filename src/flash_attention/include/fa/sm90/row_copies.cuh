// SPDX-License-Identifier: Apache-2.0
// Rows of a paged KV cache whose pages have too few keys for boxes of TMA: the lanes of a warp copy them, and
// put every 16 bytes where the swizzle of TMA would put them.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/page_numbers.cuh>
#include <fa/sm90/shape.cuh>

namespace fa::sm90 {

// K or V of a paged KV cache, by its tensor map or by its address.
struct KvCache {
  const TensorMap& map;
  const void* first;
  const Strides& stride;  // in elements; a batch is a page
  int columns;
};

__device__ constexpr int power_of_2_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Copies the rows of a warp's boxes in a block of keys, whose first is `first_key`. A lane has the same 16
// bytes of every panel, so that a page number is looked up once for all panels of a row. Columns that the cache
// does not have and pages that do not exist are zeros. Every lane arrives at `full` when its copies have landed.
template <int PageKeys, int ElementBytes, class KVTile, class Numbers>
__device__ void copy_rows(KVTile to, ptx::Mbarrier full, const Numbers& numbers, int sharer,
                          const KvCache& cache, int head, int first_key, int pages) {
  constexpr int kChunks = KVTile::kRowBytes / kChunkBytes;  // of a row of a panel
  constexpr int kRowLanes = power_of_2_from(kChunks);
  constexpr int kTogether = kWarpSize / kRowLanes;  // rows
  constexpr int kBoxKeys = Numbers::kBoxKeys, kBoxes = Numbers::count(0);
  constexpr int kBatch = common_divisor(kBoxes * kBoxKeys, 4 * kTogether) / kTogether;
  static_assert(kRowLanes <= kWarpSize && kBoxes * kBoxKeys % kTogether == 0);
  static_assert(Numbers::count(0) == Numbers::count(Numbers::kSharers - 1));
  const auto in_chunks = [](i64 stride) {
    return static_cast<u32>(stride * ElementBytes / kChunkBytes);
  };
  const int chunk = lane_id() % kRowLanes, row_together = lane_id() / kRowLanes;
  const int bytes = cache.columns * ElementBytes - chunk * kChunkBytes;  // from the chunk on
  const char* const column = static_cast<const char*>(cache.first) +
                             head * cache.stride.head * ElementBytes + chunk * kChunkBytes;
#pragma unroll
  for (int i = 0; i < Numbers::kPerLane; ++i)
#pragma unroll 1
    for (int first = 0; first < min(kWarpSize, kBoxes - i * kWarpSize) * kBoxKeys;
         first += kBatch * kTogether) {
      const int in_lanes = first + row_together;  // a row of the boxes whose pages the lanes have
      int page[kBatch];                           // all are looked up before the first is used
#pragma unroll
      for (int n = 0; n < kBatch; ++n)
        page[n] = __shfl_sync(~0u, numbers.number[i], (in_lanes + n * kTogether) / kBoxKeys);
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int box = Numbers::box_of(i, (in_lanes + n * kTogether) / kBoxKeys, sharer);
        const int row = box * kBoxKeys + (in_lanes + n * kTogether) % kBoxKeys;
        const bool exists = 0 <= page[n] && page[n] < pages;
        const u64 at = static_cast<u64>(exists ? page[n] : 0) * in_chunks(cache.stride.batch) +
                       static_cast<u64>((first_key + row) % PageKeys) * in_chunks(cache.stride.seq);
        const char* const from = column + at * kChunkBytes;
#pragma unroll
        for (int p = 0; chunk < kChunks && p < KVTile::kCount; ++p) {
          const int left = exists ? bytes - p * KVTile::kRowBytes : 0;
          const int whole = left > 0 ? kChunkBytes : 0;  // rows have a multiple of eight columns
          ptx::cp_async_16_first(
              to.chunk(row, p * kChunks + chunk), from + p * KVTile::kRowBytes,
              ElementBytes == kElementBytes ? whole : min(max(left, 0), kChunkBytes));
        }
      }
    }
  ptx::cp_async_arrive(full);
}

}  // namespace fa::sm90
