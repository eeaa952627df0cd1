// SPDX-License-Identifier: Apache-2.0
// Who touched parts of an allocation, for accesses whose lanes and places are known already: who
// touched each part last, in which epoch, and how.
#include "array.h"

enum { LANE_MASK = 63 };

// How the agents of a launch are numbered: those up to `launch` are of the launches before it.
typedef struct {
  long launch, agents, warps_per_cta;
} Numbering;

// A lane, and its rows of the clocks.
typedef struct {
  int64_t cta, warp, lane;
  const int32_t *seen, *seen_by_lanes;
} Actor;

static inline int knows(const Actor* me, const Numbering* n, int32_t number, int32_t epoch,
                        int32_t tag) {
  if (number <= n->launch) return 1;
  long theirs = number - n->launch - 1, agent = theirs % n->agents;
  if (theirs / n->agents != me->cta) return 0;
  int own = agent % n->warps_per_cta == me->warp;
  if (own && (tag & LANE_MASK) == me->lane) return 1;
  return epoch <= (own ? me->seen_by_lanes : me->seen)[agent];
}

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
  Numbering numbering = {launch, agents, warps_per_cta};
  int shift = __builtin_ctzl(part);
  for (long i = 0; i < where->shape[0]; ++i) {
    int64_t first = (offset[i] - start) >> shift, clock = row[i] * num_agents;
    Actor me = {cta[i], warp[i], lane[i], (const int32_t*)seen->data + clock,
                (const int32_t*)seen_by_lanes->data + clock};
    for (int64_t at = first; at < first + (nbytes >> shift); ++at)
      if (!knows(&me, &numbering, number[at], epoch[at], tag[at])) return SUSPICIOUS;
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

// Whether a lane knows of the last touches of a part, and of those before them by others.
static int knows_part(const Array* table, int64_t at, const Actor* me, const Numbering* n) {
  if (table == none) return 1;
  int64_t parts = table->shape[1];
  const int32_t* record = table->data;
  for (int i = 0; i < 2; ++i, record += 3 * parts)
    if (!knows(me, n, record[at], record[parts + at], record[2 * parts + at])) return 0;
  return 1;
}

// Check and record stores by one lane, which acts alone, into the tables of an allocation.
long store_by_one(const Array* where, int64_t start, long nbytes, long part, const Array* writes,
                  const Array* reads, long launch, long agents, long warps_per_cta, long cta,
                  long warp, long lane, const Array* seen, const Array* seen_by_lanes, long number,
                  long epoch, long tag) {
  if (!is_plain(where)) return SUSPICIOUS;
  const int64_t* offset = where->data;
  Numbering numbering = {launch, agents, warps_per_cta};
  Actor me = {cta, warp, lane, seen->data, seen_by_lanes->data};
  int shift = __builtin_ctzl(part);
  long count = where->shape[0], parts = nbytes >> shift, all = writes->shape[1];
  for (long i = 0; i < count; ++i) {
    int64_t first = (offset[i] - start) >> shift;
    for (int64_t at = first; at < first + parts; ++at)
      if (!knows_part(writes, at, &me, &numbering) || !knows_part(reads, at, &me, &numbering))
        return SUSPICIOUS;
  }
  int32_t* record = writes->data;
  for (long i = 0; i < count; ++i) {
    int64_t first = (offset[i] - start) >> shift;
    for (int64_t at = first; at < first + parts; ++at)
      record[at] = number, record[all + at] = epoch, record[2 * all + at] = tag,
      record[3 * all + at] = 0;
  }
  return CLEAN;
}
