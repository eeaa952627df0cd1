// SPDX-License-Identifier: Apache-2.0
// Copy engines and tensor cores in the tables of shared memory: they read and write whole chunks.
#include "shadow.h"

static int made_by(int64_t agent, int32_t tag, long warp, long lane) {
  return agent == warp && (tag & LANE_MASK) == lane;
}

// An engine writes chunks for a lane of a warp, which knows `seen`: does it know the last writes?
long check_engine_write(long first, long last, TABLES, const Array* seen, long warp, long lane) {
  Tables t = TABLES_OF_ARGUMENTS;
  const int32_t* known = seen->data;
  for (long chunk = first; chunk < last; ++chunk) {
    if (t.epoch[chunk] != SPLIT) {
      if (t.epoch[chunk] > known[t.agent[chunk]] &&
          !made_by(t.agent[chunk], t.tag[chunk], warp, lane))
        return SUSPICIOUS;
      continue;
    }
    long parts = CHUNK >> t.shift;
    for (long part = chunk * parts; part < (chunk + 1) * parts; ++part)
      if (t.unit_epoch[part] > known[t.unit_agent[part]] &&
          !made_by(t.unit_agent[part], t.unit_tag[part], warp, lane))
        return SUSPICIOUS;
  }
  return CLEAN;
}

// Whether one reader, known until an epoch, read chunks later; reads of the lane do not count.
// `size` is that of the entries of a row of the table.
long check_late_reads(long first, long last, long size, const Array* read_epoch,
                      const Array* read_tag, long row, long known, long agent, long warp,
                      long lane) {
  long parts = CHUNK / size;
  const int32_t* epoch = (const int32_t*)read_epoch->data + row;
  const int32_t* tag = (const int32_t*)read_tag->data + row;
  for (long at = first * parts; at < last * parts; ++at)
    if (epoch[at] > known && !made_by(agent, tag[at], warp, lane)) return SUSPICIOUS;
  return CLEAN;
}

// Engines read chunks [g, n] for those that started them, the rows [g, m] of the clocks: is all of
// it written, known to them, and fenced where threads wrote it?
long check_engine_read(const Array* chunks, TABLES, const Array* rows, long num_agents,
                       long lane_agents, const Array* seen_by_all, const Array* seen_by_proxy) {
  Tables t = TABLES_OF_ARGUMENTS;
  if (!is_plain(chunks) || !is_plain(rows)) return SUSPICIOUS;
  const int32_t *seen = seen_by_all->data, *proxy = seen_by_proxy->data;
  long groups = chunks->shape[0], count = chunks->shape[1], members = rows->shape[1];
  for (long g = 0; g < groups; ++g) {
    const int64_t* row = (const int64_t*)rows->data + g * members;
    for (long i = 0; i < count; ++i) {
      int64_t chunk = ((const int64_t*)chunks->data)[g * count + i];
      int split = t.epoch[chunk] == SPLIT;
      long parts = split ? CHUNK >> t.shift : 1, first = chunk * parts;
      for (long at = first; at < first + parts; ++at) {
        int32_t epoch = split ? t.unit_epoch[at] : t.epoch[at];
        int64_t agent = split ? t.unit_agent[at] : t.agent[at];
        int fenced = agent >= lane_agents;
        for (long m = 0; m < members; ++m) {
          if (epoch > seen[row[m] * num_agents + agent]) return SUSPICIOUS;
          fenced |= epoch <= proxy[row[m] * num_agents + agent];
        }
        if (epoch == 0 || !fenced) return SUSPICIOUS;
      }
    }
  }
  return CLEAN;
}

// Record chunks [g, n] that engines read.
long record_engine_reads(const Array* chunks, const Array* readers, const Array* epochs, long tag,
                         long num_chunks, const Array* read_epoch, const Array* read_tag) {
  if (!is_plain(chunks)) return SUSPICIOUS;
  long groups = chunks->shape[0], count = chunks->shape[1];
  const int64_t *chunk = chunks->data, *reader = readers->data, *epoch = epochs->data;
  for (long g = 0; g < groups; ++g)
    for (long i = 0; i < count; ++i) {
      int64_t place = reader[g] * num_chunks + chunk[g * count + i];
      ((int32_t*)read_epoch->data)[place] = epoch[g];
      ((int32_t*)read_tag->data)[place] = tag;
    }
  return CLEAN;
}
