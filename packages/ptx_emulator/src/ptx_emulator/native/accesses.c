// SPDX-License-Identifier: Apache-2.0
// What every access to memory needs: offsets of its addresses, and counts.
#include "frames.h"

enum { SECTOR = 32, WAVEFRONT = 128 };

// Offsets from `base` of the addresses of one or many instructions, 0 for lanes that make no
// access, behind `starts` and `start`. `bounds` gets the lowest and the highest of them, and the
// bits that any has. Returns how many lanes make an access.
long offsets(const Array* where, const Array* mask, int64_t base, const Array* starts,
             int64_t start, const Array* out, const Array* bounds) {
  if (!is_plain(where) || !is_plain(mask) || !is_plain(starts)) return SUSPICIOUS;
  if (item_bytes(where) != 4 && item_bytes(where) != 8) return SUSPICIOUS;
  const uint8_t* active = data(mask);
  const int64_t* first = data(starts);
  int64_t *flat = out->data, *found = bounds->data;
  int64_t low = INT64_MAX, high = INT64_MIN, bits = 0;
  long count = 0, lanes = lanes_of(where), total = rows_of(where) * lanes;
  for (long i = 0; i < total; ++i) flat[i] = (int64_t)(address(where, i) - (uint64_t)base);
  for (long i = 0; i < total; ++i) {
    if (active && !active[i]) {
      flat[i] = 0;
      continue;
    }
    low = flat[i] < low ? flat[i] : low;
    high = flat[i] > high ? flat[i] : high;
    bits |= flat[i];
    ++count;
  }
  for (long i = 0; i < total; ++i) flat[i] += start;
  for (long row = 0; first && row < total; row += lanes)
    for (long i = 0; i < lanes; ++i) flat[row + i] += first[i];
  found[0] = low, found[1] = high, found[2] = bits;
  return count;
}

// Whether lanes in a row read one unit, or as many units in a row: no two meet in a bank.
static int is_plain_row(const Array* where, long first, long lanes, int shift) {
  uint64_t unit = address(where, first) >> shift, apart = 0, same = 0;
  for (long i = 1; i < lanes; ++i) {
    uint64_t mine = address(where, first + i) >> shift;
    same |= mine ^ unit, apart |= mine ^ (unit + i);
  }
  return !same || !apart;
}

// Wavefronts of one instruction, whose lanes have their addresses from `first` on.
void add_wavefronts(const Array* where, long first, const uint8_t* active, const int64_t* warp,
                    const int64_t* lane, long nbytes, int64_t* counts) {
  int shift = __builtin_ctzl(nbytes > 4 ? nbytes : 4);  // of a lane's bytes, at least a word
  int banks = WAVEFRONT >> shift, group_shift = __builtin_ctz(banks);
  int64_t last_warp = -1;
  long count = lanes_of(where);
  for (long i = 0; i < count;) {
    long begin = i, group = lane[i] >> group_shift, last = i + banks - 1;
    if (!active && last < count && warp[last] == warp[i] && lane[last] == lane[i] + banks - 1 &&
        lane[last] >> group_shift == group && is_plain_row(where, first + i, banks, shift)) {
      if (warp[i] != last_warp) ++counts[0], last_warp = warp[i];
      ++counts[1], ++counts[2], i += banks;
      continue;
    }
    uint64_t units[WARP];
    int load[WARP] = {0}, distinct = 0, most = 0, any = 0;
    for (; i < count && warp[i] == warp[begin] && lane[i] >> group_shift == group; ++i) {
      if (active && !active[i]) continue;
      any = 1;
      uint64_t unit = address(where, first + i) >> shift;
      int bank = unit & (banks - 1), known = 0;
      if (load[bank])
        for (int j = 0; j < distinct && !known; ++j) known = units[j] == unit;
      if (known) continue;
      units[distinct++] = unit;
      if (++load[bank] > most) most = load[bank];
    }
    if (any && warp[begin] != last_warp) ++counts[0], last_warp = warp[begin];
    counts[1] += most, counts[2] += any;
  }
}

// Accesses to shared memory, for every instruction: requests, wavefronts, the fewest possible ones.
long wavefronts(const Array* where, const Array* mask, const Array* warps, const Array* lanes,
                long nbytes, const Array* out) {
  if (!is_plain(where) || !is_plain(mask) || (nbytes & (nbytes - 1))) return SUSPICIOUS;
  for (long row = 0; row < rows_of(where); ++row) {
    int64_t* counts = (int64_t*)out->data + 3 * row;
    counts[0] = counts[1] = counts[2] = 0;
    add_wavefronts(where, row * lanes_of(where), data(mask), warps->data, lanes->data, nbytes,
                   counts);
  }
  return CLEAN;
}

static int add_distinct(uint64_t* known, int count, uint64_t value) {
  if (count && value > known[count - 1]) return known[count] = value, count + 1;
  for (int j = count - 1; j >= 0; --j)
    if (known[j] == value) return count;
  // The last one stays the largest, so that rising values are seen to be new at once.
  known[count] = value;
  if (count && known[count - 1] > value) known[count] = known[count - 1], known[count - 1] = value;
  return count + 1;
}

void add_sectors(const Array* where, const uint8_t* active, const int64_t* warp, long nbytes,
                 int64_t* counts) {
  long count = where->shape[0], lanes = 0;
  int64_t requests = 0, total = 0, needed = 0;
  for (long i = 0; i < count;) {
    uint64_t places[WARP], parts[WARP];
    int num_places = 0, num_parts = 0;
    for (long begin = i; i < count && warp[i] == warp[begin]; ++i) {
      if (active && !active[i]) continue;
      ++lanes;
      uint64_t place = address(where, i);
      num_places = add_distinct(places, num_places, place);
      num_parts = add_distinct(parts, num_parts, place / SECTOR);
    }
    requests += num_places > 0;
    total += num_parts;
    needed += (num_places * nbytes + SECTOR - 1) / SECTOR;
  }
  counts[0] += requests;
  counts[1] += total * (nbytes / SECTOR > 1 ? nbytes / SECTOR : 1);
  counts[2] += needed, counts[3] += lanes * nbytes;
}

// Sectors of accesses to global memory: requests, sectors, the fewest possible ones, bytes.
long sectors(const Array* where, const Array* mask, const Array* warps, long nbytes,
             const Array* out) {
  if (!is_plain(where) || !is_plain(mask) || item_bytes(where) != 8) return SUSPICIOUS;
  int64_t* counts = out->data;
  counts[0] = counts[1] = counts[2] = counts[3] = 0;
  add_sectors(where, data(mask), warps->data, nbytes, counts);
  return CLEAN;
}
