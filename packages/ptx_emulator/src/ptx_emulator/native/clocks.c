// SPDX-License-Identifier: Apache-2.0
// Vector clocks, as machine/launch/clocks.py describes them: rows of the warps, then rows of their
// lanes that act alone, with a column for every agent, in one or more views.
#include "array.h"

typedef struct {
  int32_t* at;
  long views, rows, agents;
} Views;

static Views views_of(const Array* array) {
  Views views = {array->data, array->shape[0], array->shape[1], array->shape[2]};
  return views;
}

static int32_t* row_of(const Views* v, long view, long row) {
  return v->at + (view * v->rows + row) * v->agents;
}

static void raise(int32_t* to, const int32_t* from, long count) {
  for (long i = 0; i < count; ++i)
    if (from[i] > to[i]) to[i] = from[i];
}

// Warps, or one lane of each alone, take over what others released. Their lanes may rely on it
// where one acts `alone`, or the `whole` warp waited.
long take_over(const Array* views, const Array* by_lanes, const Array* warps, const Array* visible,
               long alone, long whole) {
  if (!is_plain(warps) || !is_plain(visible)) return SUSPICIOUS;
  Views v = views_of(views);
  const int64_t* warp = warps->data;
  const int32_t* from = visible->data;
  for (long i = 0; i < warps->shape[0]; ++i)
    for (long row = warp[i] + (alone ? v.rows / 2 : 0); row < v.rows; row += v.rows / 2) {
      for (long view = 0; view < v.views; ++view)
        raise(row_of(&v, view, row), from + view * v.agents, v.agents);
      if (alone || whole) raise((int32_t*)by_lanes->data + row * v.agents, from, v.agents);
    }
  return CLEAN;
}

// What a warp, or a lane of it alone, lets others see: all that it knows, of itself what its lanes
// have met for if one acts `alone`, and of the 4 products from `first` on what it knows of `own`.
long let_see(const Array* views, const Array* by_lanes, const Array* released, long warp_id,
             long warp, long alone, long own, long first) {
  if (!is_plain(released)) return SUSPICIOUS;
  Views v = views_of(views);
  long row = warp_id + v.rows / 2;
  int32_t met = ((int32_t*)by_lanes->data)[row * v.agents + warp];
  for (long view = 0; view < v.views; ++view) {
    const int32_t* known = row_of(&v, view, row);
    int32_t* to = (int32_t*)released->data + view * v.agents;
    for (long agent = 0; agent < v.agents; ++agent) {
      int32_t epoch = agent >= first && agent < first + 4 ? known[own] : known[agent];
      if (alone && agent == warp && met < epoch) epoch = met;
      if (epoch > to[agent]) to[agent] = epoch;
    }
  }
  return CLEAN;
}

// Warps start a new epoch, which is that of their single lanes too.
long start_epochs(const Array* seen, const Array* warps, long num_ctas, long warps_per_cta) {
  if (!is_plain(warps)) return SUSPICIOUS;
  long rows = seen->shape[0], agents = seen->shape[1];
  const int64_t* warp_id = warps->data;
  for (long i = 0; i < warps->shape[0]; ++i) {
    long warp = warp_id[i] / num_ctas;
    int32_t* mine = (int32_t*)seen->data + warp_id[i] * agents;
    int32_t* alone = mine + rows / 2 * agents;
    int32_t epoch = mine[warp] + 1;
    mine[warp] = mine[warps_per_cta + warp] = epoch;
    alone[warp] = alone[warps_per_cta + warp] = epoch;
  }
  return CLEAN;
}
