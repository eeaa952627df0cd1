// SPDX-License-Identifier: Apache-2.0
// Numbers and addresses that stay the same for many accesses, as frames.py lays them out.
#pragma once
#include <string.h>

#include "array.h"

enum { WARP = 32 };

typedef struct {
  int64_t count;
  const int64_t *warp_id, *lane, *warp, *shared_base;
} Lanes;

static inline const Lanes* lanes_in(const Array* frame) { return frame->data; }

static inline uint64_t address(const Array* where, long lane) {
  if (item_bytes(where) == 8) return ((const uint64_t*)where->data)[lane];
  return ((const uint32_t*)where->data)[lane];
}

// Whether a lane is the only active one of its warp, among lanes in order.
static inline int is_alone(const Lanes* lanes, const uint8_t* active, long i) {
  for (long j = i - 1; j >= 0 && lanes->warp_id[j] == lanes->warp_id[i]; --j)
    if (!active || active[j]) return 0;
  for (long j = i + 1; j < lanes->count && lanes->warp_id[j] == lanes->warp_id[i]; ++j)
    if (!active || active[j]) return 0;
  return 1;
}

static inline void copy_value(void* to, const void* from, long bytes) {
  switch (bytes) {  // sizes that are known are copied without a call
    case 1:
      memcpy(to, from, 1);
      break;
    case 2:
      memcpy(to, from, 2);
      break;
    case 4:
      memcpy(to, from, 4);
      break;
    case 8:
      memcpy(to, from, 8);
      break;
    default:
      memcpy(to, from, 16);
  }
}

// Counts of accesses to global memory, and to shared memory by `banks` lanes at once, added to
// what `counts` holds.
void add_sectors(const Array* where, const uint8_t* active, const int64_t* warp, long nbytes,
                 int64_t* counts);
void add_wavefronts(const Array* where, long first, const uint8_t* active, const int64_t* warp,
                    const int64_t* lane, long nbytes, int64_t* counts);
