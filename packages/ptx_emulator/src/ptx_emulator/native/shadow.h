// SPDX-License-Identifier: Apache-2.0
// The tables of the race detector of shared memory, as machine/shadow_state.py describes them:
// writers by chunk of 16 bytes or, where a chunk is split, by unit.
#pragma once
#include "frames.h"

enum { CHUNK = 16, SPLIT = -1, COLLECTIVE = 32, SEVERAL = 33, LANE_BITS = 6, LANE_MASK = 63 };

typedef struct {
  int32_t* epoch;
  int64_t* agent;
  int32_t* tag;
  int32_t* unit_epoch;  // NULL: no chunk is split
  int16_t* unit_agent;
  int32_t* unit_tag;
  int64_t shift;  // of a unit's bytes
} Tables;

// Shared memory of a launch: its bytes, the clocks, who wrote and who read what.
typedef struct {
  uint8_t* bytes;
  int64_t* counts;  // by instruction
  const int32_t *seen, *seen_by_lanes, *seen_by_proxy;
  int64_t base, num_agents, num_ctas, num_warps, warps_per_cta;
  Tables tables;
  int64_t num_chunks, num_units;
  int32_t *read_epoch, *read_tag, *unit_read_epoch, *unit_read_tag;
  int64_t num_readers;
  const int64_t *reader_agent, *reader_agents;  // of a reader: its first agent, and how many it is
  int32_t *latest_read, *latest_lane_read;
  const uint8_t* objects;  // places of mbarriers; NULL: there are none
  int64_t has_flags;       // which order what lanes do one after the other
} Shared;

static inline long parts_of(long nbytes, Tables t) {
  long parts = nbytes >> t.shift;
  return parts ? parts : 1;
}

// What the agents of a reader have done at least, as far as a clock tells.
static inline int32_t known_of(const Shared* m, const int32_t* clock, long reader) {
  const int32_t* first = clock + m->reader_agent[reader];
  int32_t known = first[0];
  for (long agent = 1; agent < m->reader_agents[reader]; ++agent)
    if (first[agent] < known) known = first[agent];
  return known;
}
