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

static int knows_writer(int32_t epoch, int64_t agent, int32_t tag, const Caller* caller) {
  return epoch <= caller->seen[agent] || made_by(agent, tag, caller);
}

static int knows_writers(Tables t, long chunk, const Caller* caller) {
  if (t.epoch[chunk] != SPLIT)
    return knows_writer(t.epoch[chunk], t.agent[chunk], t.tag[chunk], caller);
  long parts = CHUNK >> t.shift;
  for (long part = chunk * parts; part < (chunk + 1) * parts; ++part)
    if (!knows_writer(t.unit_epoch[part], t.unit_agent[part], t.unit_tag[part], caller)) return 0;
  return 1;
}

// Whether a reader read entries of a table later than the caller knows.
static int read_later(const int32_t* epoch, const int32_t* tag, long first, long last,
                      int32_t known, int64_t agent, const Caller* caller) {
  int later = 0;
  for (long at = first; at < last; ++at) later |= epoch[at] > known;
  for (long at = first; later && at < last; ++at)
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

// Whether a write is known to those that started an engine, `members` rows of the clocks, and
// fenced where a thread made it.
static int is_visible(const Shared* m, int32_t epoch, int64_t agent, const int64_t* row,
                      long members) {
  int fenced = agent >= 2 * m->warps_per_cta;
  for (long member = 0; member < members; ++member) {
    if (epoch > m->seen[row[member] * m->num_agents + agent]) return 0;
    fenced |= epoch <= m->seen_by_proxy[row[member] * m->num_agents + agent];
  }
  return epoch != 0 && fenced;
}

// Whether an engine may read chunks, `from` on, for the members. Neighbours mostly have one writer.
static int may_be_read(const Shared* m, const int64_t* chunks, long count, int64_t from,
                       const int64_t* row, long members) {
  Tables t = m->tables;
  int32_t last_epoch = 0;
  int64_t last_agent = -1;
  for (long i = 0; i < count; ++i) {
    int64_t chunk = from + chunks[i];
    if (t.epoch[chunk] == SPLIT) {
      long parts = CHUNK >> t.shift;
      for (long at = chunk * parts; at < (chunk + 1) * parts; ++at)
        if (!is_visible(m, t.unit_epoch[at], t.unit_agent[at], row, members)) return 0;
    } else if (t.epoch[chunk] != last_epoch || t.agent[chunk] != last_agent) {
      if (!is_visible(m, t.epoch[chunk], t.agent[chunk], row, members)) return 0;
      last_epoch = t.epoch[chunk], last_agent = t.agent[chunk];
    }
  }
  return 1;
}

static void record_read(const Shared* m, const int64_t* chunks, long count, int64_t from,
                        int64_t reader, int64_t epoch, int64_t tag) {
  if (epoch > m->latest_read[reader]) m->latest_read[reader] = epoch;
  int64_t first = reader * m->num_chunks + from;
  for (long i = 0; i < count; ++i)
    m->read_epoch[first + chunks[i]] = epoch, m->read_tag[first + chunks[i]] = tag;
}

// Engines read chunks [g, n] for those that started them, the rows [g, m] of the clocks. It is
// recorded at once if it was `looked_at`, and else if nothing is wrong with it.
long read_chunks(const Array* memory, const Array* chunks, const Array* rows, const Array* readers,
                 const Array* epochs, long tag, long looked_at) {
  const Shared* m = memory->data;
  if (!is_plain(chunks) || !is_plain(rows)) return SUSPICIOUS;
  long groups = chunks->shape[0], count = chunks->shape[1], members = rows->shape[1];
  const int64_t *chunk = chunks->data, *row = rows->data;
  const int64_t *reader = readers->data, *epoch = epochs->data;
  for (long g = 0; g < groups && !looked_at; ++g)
    if (!may_be_read(m, chunk + g * count, count, 0, row + g * members, members))
      return SUSPICIOUS;
  for (long g = 0; g < groups; ++g)
    record_read(m, chunk + g * count, count, 0, reader[g], epoch[g], tag);
  return CLEAN;
}

// Tensor cores read the same chunks [steps, n] of several CTAs, from the chunks `starts` [g] on, in
// steps that have a tag each. It is recorded if nothing is wrong with any of them.
long read_operands(const Array* memory, const Array* chunks, const Array* starts, const Array* rows,
                  const Array* readers, const Array* epochs, const Array* tags) {
  const Shared* m = memory->data;
  if (!is_plain(chunks) || !is_plain(rows)) return SUSPICIOUS;
  long steps = chunks->shape[0], count = chunks->shape[1];
  long groups = rows->shape[0], members = rows->shape[1];
  const int64_t *chunk = chunks->data, *start = starts->data, *row = rows->data;
  const int64_t *reader = readers->data, *tag = tags->data;
  const int32_t* epoch = epochs->data;
  for (long g = 0; g < groups; ++g)
    if (!may_be_read(m, chunk, steps * count, start[g], row + g * members, members))
      return SUSPICIOUS;
  for (long step = 0; step < steps; ++step)
    for (long g = 0; g < groups; ++g)
      record_read(m, chunk + step * count, count, start[g], reader[g], epoch[g], tag[step]);
  return CLEAN;
}

// Whether a lane that acts alone has met the others of its warp since they wrote chunks.
static int has_met_writers(const Shared* m, const int64_t* chunks, long count, long row,
                           const Caller* caller) {
  Tables t = m->tables;
  int64_t place = row * m->num_agents + caller->warp;
  int32_t met = m->seen[place];
  if (m->seen_by_lanes[place] < met) met = m->seen_by_lanes[place];
  for (long i = 0; i < count; ++i) {
    int split = t.epoch[chunks[i]] == SPLIT;
    long parts = split ? CHUNK >> t.shift : 1, first = chunks[i] * parts;
    for (long at = first; at < first + parts; ++at) {
      int64_t agent = split ? t.unit_agent[at] : t.agent[at];
      int32_t epoch = split ? t.unit_epoch[at] : t.epoch[at];
      int32_t tag = split ? t.unit_tag[at] : t.tag[at];
      if (agent == caller->warp && epoch > met && !made_by(agent, tag, caller)) return 0;
    }
  }
  return 1;
}

// An engine reads chunks for a thread with a row of the clocks, its `lane` or, where it does not
// act alone, -1.
long read_in_bulk(const Array* memory, const Array* chunks, long row, long warp, long lane,
                  long reader, long epoch, long tag) {
  const Shared* m = memory->data;
  if (!is_plain(chunks)) return SUSPICIOUS;
  long count = chunks->shape[0];
  const int64_t *chunk = chunks->data, member = row;
  Caller caller = {NULL, warp, lane};
  if (lane >= 0 && !has_met_writers(m, chunk, count, row, &caller)) return SUSPICIOUS;
  if (!may_be_read(m, chunk, count, 0, &member, 1)) return SUSPICIOUS;
  record_read(m, chunk, count, 0, reader, epoch, tag);
  return CLEAN;
}
