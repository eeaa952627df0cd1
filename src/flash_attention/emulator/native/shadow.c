// SPDX-License-Identifier: Apache-2.0
// Accesses of lanes in the tables of shared memory.
#include "shadow.h"

#include <stdlib.h>

static long parts_of(long nbytes, Tables t) {
  long parts = nbytes >> t.shift;
  return parts ? parts : 1;
}

// Reads of shared memory by one or many instructions: does every reader know the last write?
// `synced` gets what the lanes of a reading warp may rely on of each other.
long check_read(const Array* where, long nbytes, TABLES, const Array* rows, const Array* readers,
                const Array* seen_by_lanes, const Array* synced) {
  Tables t = TABLES_OF_ARGUMENTS;
  const int64_t *row = rows->data, *reader = readers->data;
  const int32_t* seen = seen_by_lanes->data;
  long count = lanes_of(where), parts = parts_of(nbytes, t);
  for (long k = 0; k < rows_of(where); ++k) {
    const int64_t* offset = (const int64_t*)where->data + k * count;
    for (long i = 0; i < count; ++i) {
      int64_t chunk = offset[i] / CHUNK, unit = offset[i] >> t.shift;
      // As unsigned numbers, never written (0) is later than any known epoch.
      if (t.epoch[chunk] == SPLIT) {
        for (long part = unit; part < unit + parts; ++part)
          if ((uint32_t)(t.unit_epoch[part] - 1) >= (uint32_t)seen[row[i] + t.unit_agent[part]])
            return SUSPICIOUS;
      } else if ((uint32_t)(t.epoch[chunk] - 1) >= (uint32_t)seen[row[i] + t.agent[chunk]]) {
        return SUSPICIOUS;
      }
    }
  }
  if (synced != none)
    for (long i = 0; i < count; ++i) ((int32_t*)synced->data)[i] = seen[row[i] + reader[i]];
  return CLEAN;
}

// A write to shared memory: does every writer know the last write?
long check_write(const Array* where, long nbytes, TABLES, const Array* rows,
                 const Array* seen_by_all) {
  Tables t = TABLES_OF_ARGUMENTS;
  const int64_t *offset = where->data, *row = rows->data;
  const int32_t* seen = seen_by_all->data;
  long count = where->shape[0], parts = parts_of(nbytes, t);
  for (long i = 0; i < count; ++i) {
    int64_t chunk = offset[i] / CHUNK, unit = offset[i] >> t.shift;
    if (t.epoch[chunk] == SPLIT) {
      for (long part = unit; part < unit + parts; ++part)
        if (t.unit_epoch[part] > seen[row[i] + t.unit_agent[part]]) return SUSPICIOUS;
    } else if (t.epoch[chunk] > seen[row[i] + t.agent[chunk]]) {
      return SUSPICIOUS;
    }
  }
  return CLEAN;
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

// Record a write; returns how many lanes find that another agent wrote their bytes at once.
// `lanes` is none where the warp writes as a whole.
long record_write(const Array* where, long nbytes, TABLES, const Array* writers,
                  const Array* when_written, const Array* lanes, long pc) {
  Tables t = TABLES_OF_ARGUMENTS;
  const int64_t *offset = where->data, *writer = writers->data, *lane = data(lanes);
  const int32_t* when = when_written->data;
  long count = where->shape[0], parts = parts_of(nbytes, t), clashes = 0;
  for (long i = 0; i < count; ++i) {
    int64_t chunk = offset[i] / CHUNK, unit = offset[i] >> t.shift;
    int32_t mine = (lane ? lane[i] : COLLECTIVE) + (pc << LANE_BITS);
    if (nbytes == CHUNK) {
      t.epoch[chunk] = when[i], t.agent[chunk] = writer[i], t.tag[chunk] = mine;
      continue;
    }
    if (t.epoch[chunk] != SPLIT) split(t, chunk);
    for (long part = unit; part < unit + parts; ++part)
      t.unit_epoch[part] = when[i], t.unit_agent[part] = writer[i], t.unit_tag[part] = mine;
  }
  for (long i = 0; i < count; ++i) {
    int64_t unit = offset[i] >> t.shift, clash = 0;
    if (nbytes == CHUNK)
      clash = t.agent[offset[i] / CHUNK] != writer[i];
    else
      for (long part = unit; part < unit + parts; ++part) clash |= t.unit_agent[part] != writer[i];
    clashes += clash != 0;
  }
  return clashes;
}

// Record that warps as a whole read chunks; `rows` is where the table of each reader begins.
long record_warp_reads(const Array* where, const Array* rows, const Array* epochs, long tag,
                       const Array* read_epoch, const Array* read_tag) {
  const int64_t *offset = where->data, *row = rows->data;
  const int32_t* when = epochs->data;
  for (long i = 0; i < where->shape[0]; ++i) {
    int64_t place = row[i] + offset[i] / CHUNK;
    ((int32_t*)read_epoch->data)[place] = when[i];
    ((int32_t*)read_tag->data)[place] = tag;
  }
  return CLEAN;
}

// Record reads of single lanes. Lanes that read the same bytes since `synced` merge.
long record_lane_reads(const Array* where, long nbytes, long size, const Array* readers, long row,
                       const Array* lanes, const Array* epochs, const Array* synced, long pc,
                       const Array* read_epoch, const Array* read_tag) {
  const int64_t *offset = where->data, *reader = readers->data, *lane = lanes->data;
  const int32_t *when = epochs->data, *since = synced->data;
  int32_t *epoch = read_epoch->data, *tag = read_tag->data;
  long count = where->shape[0], parts = nbytes / size;
  int32_t* mine = malloc(count * parts * sizeof(int32_t));
  if (!mine) return SUSPICIOUS;
  for (long i = 0; i < count; ++i)
    for (long part = 0; part < parts; ++part) {
      int64_t place = reader[i] * row + offset[i] / size + part, before = tag[place] & LANE_MASK;
      int others = epoch[place] > since[i] && before != lane[i] && before != COLLECTIVE;
      mine[i * parts + part] = (others ? SEVERAL : lane[i]) + (pc << LANE_BITS);
    }
  for (long i = 0; i < count; ++i)
    for (long part = 0; part < parts; ++part) {
      int64_t place = reader[i] * row + offset[i] / size + part;
      epoch[place] = when[i], tag[place] = mine[i * parts + part];
    }
  for (long i = 0; i < count; ++i)
    for (long part = 0; part < parts; ++part) {
      int64_t place = reader[i] * row + offset[i] / size + part;
      if (tag[place] != mine[i * parts + part]) tag[place] = SEVERAL + (pc << LANE_BITS);
    }
  free(mine);
  return CLEAN;
}

// Whether lanes of the writing warps may have read, since they last met, what is written now.
long check_lane_reads(const Array* rows, const Array* warps, long lane_agents,
                      const Array* latest_read, const Array* seen_by_lanes) {
  const int64_t *row = rows->data, *warp = warps->data;
  const int32_t *latest = latest_read->data, *seen = seen_by_lanes->data;
  for (long i = 0; i < rows->shape[0]; ++i) {
    if (latest[warp[i]] > seen[row[i] + warp[i]]) return SUSPICIOUS;
    int64_t alone = warp[i] + lane_agents;
    if (latest[alone] > seen[row[i] + alone]) return SUSPICIOUS;
  }
  return CLEAN;
}

// Whether a reader may have read, after what the writing lanes know of it, what is written now.
// It is `several` agents from `agent` on, of which the lanes have to know all. `first` is where its
// row of the table begins, with entries for `size` bytes.
long check_reader(const Array* where, long nbytes, const Array* rows, long agent, long several,
                  const Array* seen_by_all, const Array* read_epoch, long first, long size) {
  const int64_t *offset = where->data, *row = rows->data;
  const int32_t *seen = seen_by_all->data, *epoch = (const int32_t*)read_epoch->data + first;
  long parts = nbytes > size ? nbytes / size : 1;
  for (long i = 0; i < where->shape[0]; ++i)
    for (long part = 0; part < parts; ++part)
      for (long member = agent; member < agent + several; ++member)
        if (epoch[offset[i] / size + part] > seen[row[i] + member]) return SUSPICIOUS;
  return CLEAN;
}
