// SPDX-License-Identifier: Apache-2.0
// The tables of the race detector of shared memory, as machine/shadow_state.py describes them:
// writers by chunk of 16 bytes or, where a chunk is split, by unit.
#pragma once
#include "array.h"

enum { CHUNK = 16, SPLIT = -1, COLLECTIVE = 32, SEVERAL = 33, LANE_BITS = 6, LANE_MASK = 63 };

typedef struct {
  int32_t* epoch;
  int64_t* agent;
  int32_t* tag;
  int32_t* unit_epoch;  // NULL: no chunk is split
  int16_t* unit_agent;
  int32_t* unit_tag;
  int shift;  // of a unit's bytes
} Tables;

// The tables as arguments of a function, and as it uses them.
#define TABLES                                                                           \
  const Array *epochs, const Array *agents, const Array *tags, const Array *unit_epochs, \
      const Array *unit_agents, const Array *unit_tags, long unit_size
#define TABLES_OF_ARGUMENTS \
  {epochs->data,            \
   agents->data,            \
   tags->data,              \
   data(unit_epochs),       \
   data(unit_agents),       \
   data(unit_tags),         \
   unit_size ? __builtin_ctzl(unit_size) : 0}

static inline long parts_of(long nbytes, Tables t) {
  long parts = nbytes >> t.shift;
  return parts ? parts : 1;
}
