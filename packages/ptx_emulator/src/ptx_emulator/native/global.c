// SPDX-License-Identifier: Apache-2.0
// Accesses to global memory by lanes of a launch, with the tables of its race detector as
// machine/allocation.py describes them: who touched each part of an allocation last, in which epoch
// and how, and who did before that.
#include <stdlib.h>

#include "frames.h"

enum { LANE_MASK = 63, LANE_BITS = 6, KIND_BITS = 3, COLUMNS = 5 };
// What is to be looked at: bytes that nobody wrote, writes of this launch, reads of it; whether any
// such write is a mistake, and whether reads are recorded.
enum { UNWRITTEN = 1, WRITES = 2, READS = 4, NO_WRITES = 8, RECORD = 16 };

typedef struct {
  uint8_t* bytes;
  int64_t* counts;  // by instruction, COLUMNS each
  const int32_t *seen, *seen_by_lanes;
  int64_t base, launch, agents, warps_per_cta, num_agents, num_ctas, num_warps;
  int64_t newest;  // the largest number of a lane of the last access
} Launch;

typedef struct {
  int64_t pc, nbytes, size, begin, end, start;
} Site;

typedef struct {
  int32_t *number, *epoch, *tag;
} Touches;

// A lane that makes an access: its row of the clocks, its bytes, and what it leaves behind.
typedef struct {
  int64_t row, cta, warp, lane, first, offset;
  int32_t number, epoch, tag;
} Lane;

typedef struct {
  Launch* launch;
  const Site* site;
  const Lanes* lanes;
  const Array* where;
  const uint8_t* active;
  int shift;   // of the bytes of a part
  long parts;  // of an access
} Access;

static Touches touches_in(const Array* table, int other) {
  long parts = table->shape[1];
  int32_t* first = (int32_t*)table->data + 3 * other * parts;
  return (Touches){first, first + parts, first + 2 * parts};
}

static Lane lane_of(const Access* a, long i) {
  const Launch* launch = a->launch;
  Lane me = {a->lanes->warp_id[i]};
  me.cta = me.row % launch->num_ctas, me.warp = me.row / launch->num_ctas,
  me.lane = a->lanes->lane[i];
  me.epoch = launch->seen[me.row * launch->num_agents + me.warp];
  me.offset = address(a->where, i) - launch->base;
  me.first = (me.offset - a->site->start) >> a->shift;
  int64_t agent = me.warp;
  if (is_alone(a->lanes, a->active, i)) me.row += launch->num_warps, agent += launch->warps_per_cta;
  me.number = launch->launch + 1 + me.cta * launch->agents + agent;
  me.tag = me.lane + (a->site->pc << (LANE_BITS + KIND_BITS));
  return me;
}

// Whether all active lanes stay inside of the site, aligned.
static int fits(const Access* a) {
  int64_t begin = a->site->begin, last = a->site->end - a->site->nbytes, bits = 0;
  for (long i = 0; i < a->lanes->count; ++i) {
    if (a->active && !a->active[i]) continue;
    int64_t offset = address(a->where, i) - a->launch->base;
    if (offset < begin || offset > last) return 0;
    bits |= offset;
  }
  return !(bits & (a->site->nbytes - 1));
}

// Whether a lane knows of all that others did to the parts of its access in this launch.
static int knows(const Access* a, const Lane* me, Touches by) {
  const Launch* launch = a->launch;
  for (int64_t at = me->first; at < me->first + a->parts; ++at) {
    if (by.number[at] <= launch->launch) continue;
    long theirs = by.number[at] - launch->launch - 1, agent = theirs % launch->agents;
    if (theirs / launch->agents != me->cta) return 0;
    int own = agent % launch->warps_per_cta == me->warp;
    if (own && (by.tag[at] & LANE_MASK) == me->lane) continue;
    const int32_t* clock = own ? launch->seen_by_lanes : launch->seen;
    if (by.epoch[at] > clock[me->row * launch->num_agents + agent]) return 0;
  }
  return 1;
}

static int is_clean(const Access* a, const Lane* me, long how, const Array* writes,
                    const Array* reads) {
  Touches wrote = touches_in(writes, 0);
  if (how & (UNWRITTEN | NO_WRITES))
    for (int64_t at = me->first; at < me->first + a->parts; ++at) {
      if (how & UNWRITTEN && wrote.number[at] == 0) return 0;
      if (how & NO_WRITES && wrote.number[at] > a->launch->launch) return 0;
    }
  if (how & WRITES && !(knows(a, me, wrote) && knows(a, me, touches_in(writes, 1)))) return 0;
  if (!(how & READS)) return 1;
  return knows(a, me, touches_in(reads, 0)) && knows(a, me, touches_in(reads, 1));
}

// Add a touch to a table; one of somebody else that was there moves on.
static void record(const Access* a, const Lane* lanes, long count, const Array* table) {
  Touches last = touches_in(table, 0), other = touches_in(table, 1);
  for (int step = 0; step < 3; ++step)
    for (long i = 0; i < count; ++i)
      for (int64_t at = lanes[i].first; at < lanes[i].first + a->parts; ++at) {
        const Lane* me = &lanes[i];
        int differs = last.number[at] != me->number;
        if (step == 0 && differs && last.number[at])
          other.number[at] = last.number[at], other.epoch[at] = last.epoch[at],
          other.tag[at] = last.tag[at];
        if (step == 1)
          last.number[at] = me->number, last.epoch[at] = me->epoch, last.tag[at] = me->tag;
        if (step == 2 && differs)
          other.number[at] = me->number, other.epoch[at] = me->epoch, other.tag[at] = me->tag;
      }
}

// Replace what is in a table; returns how many lanes find somebody else's touch there behind it.
static long replace(const Access* a, const Lane* lanes, long count, const Array* table) {
  Touches last = touches_in(table, 0), other = touches_in(table, 1);
  long met = 0;
  for (long i = 0; i < count; ++i)
    for (int64_t at = lanes[i].first; at < lanes[i].first + a->parts; ++at) {
      last.number[at] = lanes[i].number, last.epoch[at] = lanes[i].epoch;
      last.tag[at] = lanes[i].tag, other.number[at] = 0;
    }
  for (long i = 0; i < count; ++i) {
    int lost = 0;
    for (int64_t at = lanes[i].first; at < lanes[i].first + a->parts; ++at)
      lost |= last.number[at] != lanes[i].number;
    met += lost;
  }
  return met;
}

// The active lanes of an access that nothing is wrong with, or a negative number.
static long clean_lanes(const Access* a, long how, const Array* writes, const Array* reads,
                        Lane* found) {
  long count = 0;
  a->launch->newest = 0;
  for (long i = 0; i < a->lanes->count; ++i) {
    if (a->active && !a->active[i]) continue;
    Lane me = found[count++] = lane_of(a, i);
    if (!is_clean(a, &me, how, writes, reads)) return SUSPICIOUS;
    if (me.number > a->launch->newest) a->launch->newest = me.number;
  }
  return count;
}

static void count_access(const Access* a) {
  int64_t* counts = a->launch->counts + COLUMNS * a->site->pc;
  add_sectors(a->where, a->active, a->lanes->warp_id, a->site->nbytes, counts);
  counts[COLUMNS - 1] += 1;
}

static Access access_of(const Array* launch, const Array* lanes, const Array* site,
                        const Array* where, const Array* mask, long part) {
  Access a = {launch->data, site->data, lanes_in(lanes), where, data(mask), __builtin_ctzl(part)};
  a.parts = a.site->nbytes >> a.shift;
  return a;
}

// Loads into `out`, [values, lanes]. Lanes that make no access get what is at the start of memory.
// Returns how many lanes make one.
long load_global(const Array* launch, const Array* lanes, const Array* site, const Array* where,
                 const Array* mask, long part, long how, const Array* writes, const Array* reads,
                 const Array* out) {
  if (!is_plain(where) || !is_plain(mask) || item_bytes(where) != 8) return SUSPICIOUS;
  Access a = access_of(launch, lanes, site, where, mask, part);
  long count = a.lanes->count, size = a.site->size, values = out->shape[0], active = count;
  if (!fits(&a)) return SUSPICIOUS;
  if (how) {
    Lane* found = malloc(count * sizeof(Lane));
    active = found ? clean_lanes(&a, how, writes, reads, found) : SUSPICIOUS;
    if (active > 0 && how & RECORD) record(&a, found, active, reads);
    free(found);
    if (active < 0) return SUSPICIOUS;
  }
  count_access(&a);
  for (long i = 0; i < count; ++i) {
    int64_t offset = a.active && !a.active[i] ? 0 : address(where, i) - a.launch->base;
    for (long value = 0; value < values; ++value)
      copy_value((char*)out->data + (value * count + i) * size,
                 a.launch->bytes + offset + value * size, size);
  }
  return active;
}

// Stores of up to four values a lane. Returns how many lanes meet another agent's store at once;
// nothing is stored then.
long store_global(const Array* launch, const Array* lanes, const Array* site, const Array* where,
                  const Array* mask, long part, long how, const Array* writes, const Array* reads,
                  const Array* first, const Array* second, const Array* third,
                  const Array* fourth) {
  const Array* values[] = {first, second, third, fourth};
  if (!is_plain(where) || !is_plain(mask) || item_bytes(where) != 8) return SUSPICIOUS;
  for (int value = 0; value < 4; ++value)
    if (!is_plain(values[value])) return SUSPICIOUS;
  Access a = access_of(launch, lanes, site, where, mask, part);
  long count = a.lanes->count, size = a.site->size;
  if (!fits(&a)) return SUSPICIOUS;
  Lane* found = malloc(count * sizeof(Lane));
  long active = found ? clean_lanes(&a, how, writes, reads, found) : SUSPICIOUS;
  long met = active < 0 ? SUSPICIOUS : replace(&a, found, active, writes);
  if (met >= 0) count_access(&a);
  for (long i = 0, lane = 0; i < count && met == 0; ++i) {
    if (a.active && !a.active[i]) continue;
    uint8_t* place = a.launch->bytes + found[lane++].offset;
    for (int value = 0; value < 4 && values[value] != none; ++value)
      copy_value(place + value * size, (char*)values[value]->data + i * size, size);
  }
  free(found);
  return met;
}
