// SPDX-License-Identifier: Apache-2.0
// Copy engines and tensor cores in the tables of shared memory: they read and write whole chunks.
#include "shadow.h"

// A lane of a warp that an engine works for, and what it knows.
typedef struct {
  const int32_t* seen;
  long warp, lane;
} Caller;

static int made_by(int64_t agent, int32_t tag, const Caller* caller) {
  return agent == caller->warp && (tag & LANE_MASK) == caller->lane;
}

static int knows_writers(Tables t, long chunk, const Caller* caller) {
  if (t.epoch[chunk] != SPLIT)
    return t.epoch[chunk] <= caller->seen[t.agent[chunk]] ||
           made_by(t.agent[chunk], t.tag[chunk], caller);
  long parts = CHUNK >> t.shift;
  for (long part = chunk * parts; part < (chunk + 1) * parts; ++part)
    if (t.unit_epoch[part] > caller->seen[t.unit_agent[part]] &&
        !made_by(t.unit_agent[part], t.unit_tag[part], caller))
      return 0;
  return 1;
}

// Whether a reader read entries of a table later than the caller knows.
static int read_later(const int32_t* epoch, const int32_t* tag, long first, long last,
                      int32_t known, int64_t agent, const Caller* caller) {
  for (long at = first; at < last; ++at)
    if (epoch[at] > known && !made_by(agent, tag[at], caller)) return 1;
  return 0;
}

static int knows_readers(const Shared* m, long first, long last, const Caller* caller) {
  for (long reader = 0; reader < m->num_readers; ++reader) {
    int32_t known = known_of(m, caller->seen, reader);
    if (m->latest_read[reader] <= known) continue;
    int64_t agent = m->reader_agent[reader], row = reader * m->num_chunks;
    if (read_later(m->read_epoch + row, m->read_tag + row, first, last, known, agent, caller))
      return 0;
    if (!m->unit_read_epoch || reader >= 2 * m->warps_per_cta) continue;
    long parts = CHUNK >> m->tables.shift;
    row = reader * m->num_units;
    if (read_later(m->unit_read_epoch + row, m->unit_read_tag + row, first * parts, last * parts,
                   known, agent, caller))
      return 0;
  }
  return 1;
}

// An engine writes chunks for a lane of a warp, which has to know all accesses to them.
long write_chunks(const Array* memory, long first, long last, const Array* seen, long warp,
                  long lane, long agent, long epoch, long tag) {
  const Shared* m = memory->data;
  Tables t = m->tables;
  Caller caller = {seen->data, warp, lane};
  for (long chunk = first; chunk < last; ++chunk)
    if (!knows_writers(t, chunk, &caller)) return SUSPICIOUS;
  if (!knows_readers(m, first, last, &caller)) return SUSPICIOUS;
  for (long chunk = first; chunk < last; ++chunk)
    t.epoch[chunk] = epoch, t.agent[chunk] = agent, t.tag[chunk] = tag;
  return CLEAN;
}

// Whether what an engine reads is written, known to those that started it, `members` rows of the
// clocks, and fenced where threads wrote it.
static int may_be_read(const Shared* m, int64_t chunk, const int64_t* row, long members) {
  Tables t = m->tables;
  int split = t.epoch[chunk] == SPLIT;
  long parts = split ? CHUNK >> t.shift : 1, first = chunk * parts;
  for (long at = first; at < first + parts; ++at) {
    int32_t epoch = split ? t.unit_epoch[at] : t.epoch[at];
    int64_t agent = split ? t.unit_agent[at] : t.agent[at];
    int fenced = agent >= 2 * m->warps_per_cta;
    for (long member = 0; member < members; ++member) {
      if (epoch > m->seen[row[member] * m->num_agents + agent]) return 0;
      fenced |= epoch <= m->seen_by_proxy[row[member] * m->num_agents + agent];
    }
    if (epoch == 0 || !fenced) return 0;
  }
  return 1;
}

// Engines read chunks [g, n] for those that started them, the rows [g, m] of the clocks. It is
// recorded at once if it was `looked_at`, and else if nothing is wrong with it.
long read_chunks(const Array* memory, const Array* chunks, const Array* rows, const Array* readers,
                 const Array* epochs, long tag, long looked_at) {
  const Shared* m = memory->data;
  if (!is_plain(chunks) || !is_plain(rows)) return SUSPICIOUS;
  long groups = chunks->shape[0], count = chunks->shape[1], members = rows->shape[1];
  const int64_t *chunk = chunks->data, *reader = readers->data, *epoch = epochs->data;
  for (long i = 0; i < groups * count && !looked_at; ++i)
    if (!may_be_read(m, chunk[i], (const int64_t*)rows->data + i / count * members, members))
      return SUSPICIOUS;
  for (long g = 0; g < groups; ++g) {
    int32_t* latest = &m->latest_read[reader[g]];
    if (epoch[g] > *latest) *latest = epoch[g];
    for (long i = 0; i < count; ++i) {
      int64_t place = reader[g] * m->num_chunks + chunk[g * count + i];
      m->read_epoch[place] = epoch[g], m->read_tag[place] = tag;
    }
  }
  return CLEAN;
}
