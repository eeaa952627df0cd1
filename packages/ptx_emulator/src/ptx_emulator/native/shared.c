// SPDX-License-Identifier: Apache-2.0
// Accesses of lanes to shared memory, with the tables of its race detector as
// machine/shadow_state.py describes them.
#include <stdlib.h>
#include <string.h>

#include "shadow.h"

enum { COLUMNS = 4, OBJECT = 8 };
static const uint32_t POISON = 0x7FFF7FFF;

// One instruction, or many that do the same.
typedef struct {
  int64_t rows;
  const int64_t *pcs, *begins, *ends;  // of an instruction: its number, the bytes it may reach
  int64_t nbytes, size;
} Site;

// The lanes that make an access: their rows of the clocks, their numbers as readers and in their
// warps, their epochs, and until when their warp has met.
typedef struct {
  int64_t *clock, *agent, *lane, *epoch, *synced;
} Who;

static Who who_in(int64_t* table, long count) {
  return (Who){table, table + count, table + 2 * count, table + 3 * count, table + 4 * count};
}

// A lane acts alone if no other one of its warp is there. Of many lanes, all that are selected are.
static const uint8_t* lanes_that_count(const Lanes* lanes, const uint8_t* active) {
  long warps = 0, count = 0;
  for (long i = 0; active && i < lanes->count; ++i) {
    warps += i == 0 || lanes->warp_id[i] != lanes->warp_id[i - 1];
    count += active[i];
  }
  return count > warps ? NULL : active;
}

static long find_lanes(const Shared* m, const Lanes* lanes, const uint8_t* active, Who who) {
  const uint8_t* others = lanes_that_count(lanes, active);
  long found = 0;
  for (long i = 0; i < lanes->count; ++i) {
    if (active && !active[i]) continue;
    int64_t warp = lanes->warp[i], row = lanes->warp_id[i], agent = warp;
    who.epoch[found] = m->seen[row * m->num_agents + warp];
    int alone = is_alone(lanes, others, i);
    if (alone) row += m->num_warps, agent += m->warps_per_cta;
    who.clock[found] = row * m->num_agents, who.agent[found] = agent;
    who.lane[found] = lanes->lane[i];
    int32_t met = m->seen_by_lanes[row * m->num_agents + agent];
    who.synced[found] = alone && m->has_flags ? who.epoch[found] : met;
    ++found;
  }
  return found;
}

// Places in the memory of all CTAs, of active lanes; 0 where an access is not aligned or not inside
// of the site. `wide` tells how wide addresses are.
static inline __attribute__((always_inline)) int find_places_of(const Shared* m, const Lanes* lanes,
                                                                const Site* site, long row,
                                                                const void* where, int wide,
                                                                const uint8_t* active,
                                                                int64_t* out) {
  int64_t first = site->begins[row], span = site->ends[row] - site->nbytes - first;
  int64_t bits = 0, outside = 0;
  for (long i = 0, found = 0; i < lanes->count; ++i) {
    if (active && !active[i]) continue;
    int64_t place = wide ? ((const int64_t*)where)[i] : ((const uint32_t*)where)[i];
    outside |= (uint64_t)(place - m->base - first) > (uint64_t)span;
    bits |= place - m->base;
    out[found++] = place + lanes->shared_base[i];
  }
  return !outside && span >= 0 && !(bits & (site->nbytes - 1));
}

static int find_places(const Shared* m, const Lanes* lanes, const Site* site, const Array* where,
                       long row, const uint8_t* active, int64_t* out) {
  const char* first = (char*)where->data + row * lanes->count * item_bytes(where);
  if (item_bytes(where) == 8) return find_places_of(m, lanes, site, row, first, 1, active, out);
  if (active) return find_places_of(m, lanes, site, row, first, 0, active, out);
  return find_places_of(m, lanes, site, row, first, 0, NULL, out);
}

// Whether a lane may read what its warp has not met about.
static int may_read(const Shared* m, const Who* who, long i, int32_t epoch, int64_t agent,
                    int32_t tag, int collective) {
  if (epoch == 0) return 0;
  if (epoch > m->seen[who->clock[i] + agent]) return 0;
  int64_t wpc = m->warps_per_cta, warp = who->agent[i] % wpc;
  if (agent >= 3 * wpc || agent % wpc != warp)
    return 1;  // neither the warp, a lane nor a copy of it
  return !collective && (tag & LANE_MASK) == who->lane[i];
}

static int is_written(const Shared* m, const Who* who, long count, const int64_t* places,
                      long nbytes, int collective) {
  Tables t = m->tables;
  long parts = parts_of(nbytes, t);
  const int32_t* met = m->seen_by_lanes;
  for (long i = 0; i < count; ++i) {
    int64_t chunk = places[i] / CHUNK, clock = who->clock[i];
    int32_t epoch = t.epoch[chunk];
    // As unsigned numbers, never written (0) and split (-1) are later than any known epoch.
    if ((uint32_t)(epoch - 1) < (uint32_t)met[clock + t.agent[chunk]]) continue;
    if (epoch != SPLIT) {
      if (!may_read(m, who, i, epoch, t.agent[chunk], t.tag[chunk], collective)) return 0;
      continue;
    }
    int64_t unit = places[i] >> t.shift;
    for (long part = unit; part < unit + parts; ++part) {
      int64_t agent = t.unit_agent[part];
      if ((uint32_t)(t.unit_epoch[part] - 1) < (uint32_t)met[clock + agent]) continue;
      if (!may_read(m, who, i, t.unit_epoch[part], agent, t.unit_tag[part], collective)) return 0;
    }
  }
  return 1;
}

static inline __attribute__((always_inline)) void gather_sized(const Shared* m, long count,
                                                               const int64_t* places, long size,
                                                               long values, char* out) {
  for (long value = 0; value < values; ++value)
    for (long i = 0; i < count; ++i)
      copy_value(out + (value * count + i) * size, m->bytes + places[i] + value * size, size);
}

static void gather(const Shared* m, long count, const int64_t* places, long size, long values,
                   char* out) {
  if (size == 4 && values == 1) return gather_sized(m, count, places, 4, 1, out);
  if (size == 4) return gather_sized(m, count, places, 4, values, out);
  gather_sized(m, count, places, size, values, out);
}

// Values of some lanes; the others get what is at the start of the memory of their CTA.
static void gather_some(const Shared* m, const Lanes* lanes, const uint8_t* active,
                        const int64_t* places, long size, long values, char* out) {
  for (long i = 0; i < lanes->count; ++i) {
    const uint8_t* from = m->bytes + (active[i] ? *places++ : lanes->shared_base[i] + m->base);
    for (long value = 0; value < values; ++value)
      copy_value(out + (value * lanes->count + i) * size, from + value * size, size);
  }
}

// Whether an instruction of a run has the addresses of the first one, all as far away: it has the
// same conflicts, in other banks.
static int is_shifted(const Array* where, long row, long count, long nbytes) {
  if (item_bytes(where) != 4 || row == 0) return 0;
  const uint32_t *first = where->data, *mine = first + row * count;
  uint32_t step = mine[0] - first[0], differs = step & ((nbytes > 4 ? nbytes : 4) - 1);
  for (long i = 0; i < count; ++i) differs |= mine[i] - first[i] - step;
  return !differs;
}

static void count_access(const Shared* m, const Lanes* lanes, const Site* site, const Array* where,
                         const uint8_t* active) {
  int64_t first[COLUMNS] = {0};
  add_wavefronts(where, 0, active, lanes->warp_id, lanes->lane, site->nbytes, first);
  for (long row = 0; row < site->rows; ++row) {
    int64_t mine[COLUMNS] = {first[0], first[1], first[2]};
    if (row && !is_shifted(where, row, lanes->count, site->nbytes)) {
      memset(mine, 0, sizeof(mine));
      add_wavefronts(where, row * lanes->count, active, lanes->warp_id, lanes->lane, site->nbytes,
                     mine);
    }
    int64_t* counts = m->counts + COLUMNS * site->pcs[row];
    for (int column = 0; column < COLUMNS - 1; ++column) counts[column] += mine[column];
    counts[COLUMNS - 1] += 1;
  }
}

static int is_usual(const Array* where, const Array* mask, const Site* site) {
  return is_plain(where) && is_plain(mask) && !(site->nbytes & (site->nbytes - 1)) &&
         (item_bytes(where) == 4 || item_bytes(where) == 8);
}

// Reads. `places` gets where active lanes read, `readers` who they are, and `out`, unless it is
// none, the values [instructions * values, lanes]. Returns how many lanes are active.
long read_shared(const Array* memory, const Array* selection, const Array* at, const Array* where,
                 const Array* mask, long collective, const Array* places, const Array* readers,
                 const Array* out) {
  const Shared* m = memory->data;
  const Lanes* lanes = lanes_in(selection);
  const Site* site = at->data;
  const uint8_t* active = data(mask);
  if (!is_usual(where, mask, site)) return SUSPICIOUS;
  Who who = who_in(readers->data, lanes->count);
  long count = find_lanes(m, lanes, active, who), size = site->size, values = site->nbytes / size;
  for (long row = 0; row < site->rows; ++row) {
    int64_t* mine = (int64_t*)places->data + row * count;
    if (!find_places(m, lanes, site, where, row, active, mine)) return SUSPICIOUS;
    if (!is_written(m, &who, count, mine, site->nbytes, collective)) return SUSPICIOUS;
    char* to = out == none ? NULL : (char*)out->data + row * values * lanes->count * size;
    if (to && active)
      gather_some(m, lanes, active, mine, size, values, to);
    else if (to)
      gather(m, count, mine, size, values, to);
  }
  count_access(m, lanes, site, where, active);
  return count;
}

// Whether a table of reads has one of `reader`, at places of a lane, later than `known`.
static int reads_after(const int32_t* epochs, int64_t place, long size, long nbytes,
                       int64_t known) {
  long parts = nbytes > size ? nbytes / size : 1;
  for (long part = 0; part < parts; ++part)
    if (epochs[place / size + part] > known) return 1;
  return 0;
}

static int was_read_after(const Shared* m, int64_t reader, int64_t place, long nbytes,
                          int64_t known) {
  if (reads_after(m->read_epoch + reader * m->num_chunks, place, CHUNK, CHUNK, known)) return 1;
  return m->unit_read_epoch && reader < 2 * m->warps_per_cta &&
         reads_after(m->unit_read_epoch + reader * m->num_units, place, 1 << m->tables.shift,
                     nbytes, known);
}

// Whether another lane of the warp, or its single lane, read after `known` what a lane writes.
static int another_read_after(const Shared* m, int64_t reader, int64_t place, long nbytes,
                              int64_t known, int64_t lane) {
  int64_t chunk = reader * m->num_chunks + place / CHUNK;
  int64_t by = m->read_tag[chunk] & LANE_MASK;
  if (m->read_epoch[chunk] > known && by != COLLECTIVE && by != lane) return 1;
  if (!m->unit_read_epoch) return 0;
  int64_t first = reader * m->num_units + (place >> m->tables.shift);
  for (int64_t part = first; part < first + parts_of(nbytes, m->tables); ++part) {
    by = m->unit_read_tag[part] & LANE_MASK;
    if (m->unit_read_epoch[part] > known && by != COLLECTIVE && by != lane) return 1;
  }
  return 0;
}

static int is_read_over(const Shared* m, const Who* who, long i, int64_t place, long nbytes,
                        const uint8_t* doubtful) {
  for (long reader = 0; reader < m->num_readers; ++reader)
    if (doubtful[reader] &&
        was_read_after(m, reader, place, nbytes, known_of(m, m->seen + who->clock[i], reader)))
      return 0;
  int64_t warp = who->agent[i] % m->warps_per_cta;
  for (int64_t agent = warp; agent < 2 * m->warps_per_cta; agent += m->warps_per_cta) {
    int32_t met = m->seen_by_lanes[who->clock[i] + agent];
    if (m->latest_lane_read[agent] > met &&
        another_read_after(m, agent, place, nbytes, met, who->lane[i]))
      return 0;
  }
  return 1;
}

// Whether writing lanes know all that others did to their bytes.
static int may_write(const Shared* m, const Who* who, long count, const int64_t* places,
                     long nbytes) {
  Tables t = m->tables;
  long parts = parts_of(nbytes, t);
  uint8_t doubtful[m->num_readers];
  for (long i = 0; i < count; ++i) {
    int64_t chunk = places[i] / CHUNK, unit = places[i] >> t.shift, clock = who->clock[i];
    if (t.epoch[chunk] == SPLIT) {
      for (long part = unit; part < unit + parts; ++part)
        if (t.unit_epoch[part] > m->seen[clock + t.unit_agent[part]]) return 0;
    } else if (t.epoch[chunk] > m->seen[clock + t.agent[chunk]]) {
      return 0;
    }
    if (i == 0 || clock != who->clock[i - 1])
      for (long reader = 0; reader < m->num_readers; ++reader)
        doubtful[reader] = m->latest_read[reader] > known_of(m, m->seen + clock, reader);
    if (!is_read_over(m, who, i, places[i], nbytes, doubtful)) return 0;
    if (m->objects &&
        (m->objects[places[i] / OBJECT] || m->objects[(places[i] + nbytes - 1) / OBJECT]))
      return 0;
  }
  return 1;
}

static void split(Tables t, int64_t chunk) {
  long parts = CHUNK >> t.shift;
  for (long part = chunk * parts; part < (chunk + 1) * parts; ++part) {
    t.unit_epoch[part] = t.epoch[chunk];
    t.unit_agent[part] = t.agent[chunk];
    t.unit_tag[part] = t.tag[chunk];
  }
  t.epoch[chunk] = SPLIT;
  t.agent[chunk] = 0;
}

// Record writes; returns how many lanes find that another agent wrote their bytes at once.
static long record_writes(const Shared* m, const Who* who, long count, const int64_t* places,
                          const Site* site, int collective) {
  Tables t = m->tables;
  long nbytes = site->nbytes, parts = parts_of(nbytes, t), clashes = 0;
  for (long i = 0; i < count; ++i) {
    int64_t chunk = places[i] / CHUNK, unit = places[i] >> t.shift;
    int32_t mine = (collective ? COLLECTIVE : who->lane[i]) + (site->pcs[0] << LANE_BITS);
    if (nbytes == CHUNK) {
      t.epoch[chunk] = who->epoch[i], t.agent[chunk] = who->agent[i], t.tag[chunk] = mine;
      continue;
    }
    if (t.epoch[chunk] != SPLIT) split(t, chunk);
    for (long part = unit; part < unit + parts; ++part)
      t.unit_epoch[part] = who->epoch[i], t.unit_agent[part] = who->agent[i],
      t.unit_tag[part] = mine;
  }
  for (long i = 0; i < count; ++i) {
    int64_t unit = places[i] >> t.shift, clash = 0;
    if (nbytes == CHUNK)
      clash = t.agent[places[i] / CHUNK] != who->agent[i];
    else
      for (long part = unit; part < unit + parts; ++part)
        clash |= t.unit_agent[part] != who->agent[i];
    clashes += clash != 0;
  }
  return clashes;
}

static void scatter(const Shared* m, const Site* site, const Lanes* lanes, const uint8_t* active,
                    const int64_t* places, const Array** values) {
  for (long i = 0; i < lanes->count; ++i) {
    if (active && !active[i]) continue;
    uint8_t* to = m->bytes + *places++;
    for (int value = 0; value < 4 && values[value] != none; ++value)
      copy_value(to + value * site->size, (char*)values[value]->data + i * site->size, site->size);
  }
}

// Writes of up to four values a lane, or of none, by the lanes themselves. With `epochs` they are
// those of the copy engines of their warps, in those epochs, and the bytes are poisoned. `places`
// gets where active lanes write. Returns how many of them find another agent's write at once.
long write_shared(const Array* memory, const Array* selection, const Array* at, const Array* where,
                  const Array* mask, long collective, const Array* epochs, const Array* places,
                  const Array* writers, const Array* first, const Array* second, const Array* third,
                  const Array* fourth) {
  const Shared* m = memory->data;
  const Lanes* lanes = lanes_in(selection);
  const Site* site = at->data;
  const Array* values[] = {first, second, third, fourth};
  const uint8_t* active = data(mask);
  if (!is_usual(where, mask, site)) return SUSPICIOUS;
  for (int value = 0; value < 4; ++value)
    if (!is_plain(values[value])) return SUSPICIOUS;
  if (!find_places(m, lanes, site, where, 0, active, places->data)) return SUSPICIOUS;
  Who who = who_in(writers->data, lanes->count);
  long count = find_lanes(m, lanes, active, who);
  if (!may_write(m, &who, count, places->data, site->nbytes)) return SUSPICIOUS;
  if (epochs != none)
    for (long i = 0, found = 0; i < lanes->count; ++i) {
      if (active && !active[i]) continue;
      who.agent[found] = 2 * m->warps_per_cta + lanes->warp[i];
      who.epoch[found++] = ((const int64_t*)epochs->data)[i];
    }
  long clashes = record_writes(m, &who, count, places->data, site, collective);
  count_access(m, lanes, site, where, active);
  scatter(m, site, lanes, active, places->data, values);
  if (epochs != none)
    for (long i = 0; i < count; ++i)
      for (long word = 0; word < site->nbytes; word += sizeof(POISON))
        memcpy(m->bytes + ((int64_t*)places->data)[i] + word, &POISON, sizeof(POISON));
  return clashes;
}

static void record_lane_reads(const Shared* m, const Who* who, long count, const int64_t* places,
                              long nbytes, int64_t pc, int32_t* mine) {
  int fine = nbytes != CHUNK;
  long size = fine ? 1 << m->tables.shift : CHUNK, parts = nbytes / size;
  int64_t row = fine ? m->num_units : m->num_chunks;
  int32_t* epoch = fine ? m->unit_read_epoch : m->read_epoch;
  int32_t* tag = fine ? m->unit_read_tag : m->read_tag;
  for (int step = 0; step < 3; ++step)
    for (long i = 0; i < count; ++i)
      for (long part = 0; part < parts; ++part) {
        int64_t place = who->agent[i] * row + places[i] / size + part;
        int32_t* me = &mine[i * parts + part];
        if (step == 0) {
          int64_t before = tag[place] & LANE_MASK;
          int others =
              epoch[place] > who->synced[i] && before != who->lane[i] && before != COLLECTIVE;
          *me = (others ? SEVERAL : who->lane[i]) + (pc << LANE_BITS);
        } else if (step == 1) {
          epoch[place] = who->epoch[i], tag[place] = *me;
        } else if (tag[place] != *me) {
          tag[place] = SEVERAL + (pc << LANE_BITS);
        }
      }
}

// Enter reads into the tables. Lanes that read the same bytes since they met merge.
long record_reads(const Array* memory, const Array* pcs, const Array* all_places, long nbytes,
                  const Array* readers, long collective) {
  const Shared* m = memory->data;
  long count = all_places->shape[1];
  Who who = who_in(readers->data, readers->shape[1]);
  int32_t* mine = collective ? NULL : malloc(count * CHUNK * sizeof(int32_t));
  if (!collective && !mine) return SUSPICIOUS;
  for (long row = 0; row < all_places->shape[0]; ++row) {
    const int64_t* places = (int64_t*)all_places->data + row * count;
    int64_t pc = ((int64_t*)pcs->data)[row];
    if (!collective) record_lane_reads(m, &who, count, places, nbytes, pc, mine);
    for (long i = 0; collective && i < count; ++i) {
      int64_t place = who.agent[i] * m->num_chunks + places[i] / CHUNK;
      m->read_epoch[place] = who.epoch[i], m->read_tag[place] = COLLECTIVE + (pc << LANE_BITS);
    }
  }
  for (long i = 0; i < count; ++i) {
    int32_t *latest = &m->latest_read[who.agent[i]], *of_lanes = &m->latest_lane_read[who.agent[i]];
    if (who.epoch[i] > *latest) *latest = who.epoch[i];
    if (!collective && who.epoch[i] > *of_lanes) *of_lanes = who.epoch[i];
  }
  free(mine);
  return CLEAN;
}
