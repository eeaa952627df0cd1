// SPDX-License-Identifier: Apache-2.0
// Who touched parts of an allocation, for accesses whose lanes and places are known already: who
// touched each part last, in which epoch, and how.
#include "array.h"

enum { LANE_MASK = 63 };

// Whether the lanes know of all that others did to the parts of their accesses in this launch.
// `numbers`, `epochs` and `tags` are those of the parts; the others belong to the lanes.
long check_touches(const Array* where, int64_t start, long nbytes, long part, const Array* numbers,
                   const Array* epochs, const Array* tags, long launch, long agents,
                   long warps_per_cta, long num_agents, const Array* rows, const Array* ctas,
                   const Array* warps, const Array* lanes, const Array* seen,
                   const Array* seen_by_lanes) {
  const int64_t *offset = where->data, *row = rows->data, *cta = ctas->data;
  const int64_t *warp = warps->data, *lane = lanes->data;
  const int32_t *number = numbers->data, *epoch = epochs->data, *tag = tags->data;
  int shift = __builtin_ctzl(part);
  for (long i = 0; i < where->shape[0]; ++i) {
    int64_t first = (offset[i] - start) >> shift;
    for (int64_t at = first; at < first + (nbytes >> shift); ++at) {
      if (number[at] <= launch) continue;
      long theirs = number[at] - launch - 1, agent = theirs % agents;
      if (theirs / agents != cta[i]) return SUSPICIOUS;
      int own = agent % warps_per_cta == warp[i];
      if (own && (tag[at] & LANE_MASK) == lane[i]) continue;
      const Array* clock = own ? seen_by_lanes : seen;
      if (epoch[at] > ((const int32_t*)clock->data)[row[i] * num_agents + agent]) return SUSPICIOUS;
    }
  }
  return CLEAN;
}

// Record stores; returns how many lanes find that another agent stored there at once.
long record_stores(const Array* where, int64_t start, long nbytes, long part, const Array* numbers,
                   const Array* epochs, const Array* tags, const Array* others,
                   const Array* my_number, const Array* my_epoch, const Array* my_tag) {
  const int64_t* offset = where->data;
  const int32_t *mine = my_number->data, *when = my_epoch->data, *tag = my_tag->data;
  int32_t *number = numbers->data, *epoch = epochs->data, *how = tags->data;
  int32_t* other = others->data;
  int shift = __builtin_ctzl(part);
  long count = where->shape[0], parts = nbytes >> shift, met = 0;
  for (long i = 0; i < count; ++i) {
    int64_t first = (offset[i] - start) >> shift;
    for (int64_t at = first; at < first + parts; ++at) {
      number[at] = mine[i], epoch[at] = when[i], how[at] = tag[i];
      other[at] = 0;
    }
  }
  for (long i = 0; i < count; ++i) {
    int64_t first = (offset[i] - start) >> shift;
    int lost = 0;
    for (int64_t at = first; at < first + parts; ++at) lost |= number[at] != mine[i];
    met += lost;
  }
  return met;
}
