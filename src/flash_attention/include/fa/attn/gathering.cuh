// SPDX-License-Identifier: Apache-2.0
// Gradients of the tensors that a user's score function reads, in a kernel whose rows are keys.
#pragma once
#include <fa/attn/function.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/attn/softmax.cuh>
#include <fa/core.cuh>

namespace fa::attn::function {

// dS of changed scores is added to the gradients of captured tensors. `Own` has each(), which visits the
// elements of a lane. Terms of an element are added up in a warp first.
template <class Own, class Program, class At>
class Gathering {
  using ProgramArgs = typename Program::Args;

 public:
  // The derivatives by captured elements that depend on scores: scores are gone when dS is there.
  template <class Scores>
  struct Kept {
    Scores of[Program::kKeptLoads > 0 ? Program::kKeptLoads : 1];
  };

  template <class Scores>
  __device__ void keep(Kept<Scores>& kept, const Scores& s, float scale, const ProgramArgs& args,
                       const Place& place) const {
    keep_all(typename Program::Loads{}, kept, s, scale, args, place);
  }

  template <class Scores>
  __device__ void gather(const Scores& ds, const Kept<Scores>& kept, const ProgramArgs& args,
                         const Place& place, const Sequence& sequence) const {
    gather_all(typename Program::Loads{}, ds, kept, args, place, sequence);
  }

 private:
  template <class... Loads, class... Given>
  __device__ void keep_all(List<Loads...>, Given&... given) const {
    (keep_load<Loads>(given...), ...);
  }
  template <class... Loads, class... Given>
  __device__ void gather_all(List<Loads...>, const Given&... given) const {
    (gather_load<Loads>(given...), ...);
  }

  template <class Load, class Scores>
  __device__ void keep_load(Kept<Scores>& kept, const Scores& s, float scale,
                            const ProgramArgs& args, const Place& place) const {
    if constexpr (Load::kKept >= 0)
      own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
        kept.of[Load::kKept].v[0][j][e] = derivative_of<Load>(at, s.v[0][j][e] * scale);
      });
  }

  template <class Load, class Scores>
  __device__ void gather_load(const Scores& ds, const Kept<Scores>& kept, const ProgramArgs& args,
                              const Place& place, const Sequence& sequence) const {
    if constexpr (Load::kShared == Shared::kElement)
      return gather_shared<Load>(ds, kept, args, place);
    float sums[2] = {};
    typename Load::Element* to[2];
    own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
      const int h = e / 2;
      const float x = term<Load>(ds, kept, j, e, at);
      to[h] = place_of<Load>(at);
      if constexpr (Load::kStores) {
        if (at.query - place.ahead < sequence.q_len && at.key < sequence.k_len)
          Load::add(args, to[h], x);
      } else if constexpr (Load::kShared == Shared::kPair) {
        Load::add(args, to[h], x);
      } else if constexpr (Load::kShared == Shared::kQuery) {
        sums[h] = x;
        if (h == 0) return;
        const float sum = column_sum(sums[0] + sums[1]);
        if (lane_id() < 4) Load::add(args, to[h], sum);
      } else {
        sums[h] += x;
      }
    });
    if constexpr (Load::kShared == Shared::kHead) {
      const float sum = lanes_sum<32>(sums[0] + sums[1]);
      if (lane_id() == 0) Load::add(args, to[0], sum);
    } else if constexpr (Load::kShared == Shared::kKey) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(sums[h]);
        if (lane_id() % 4 == 0) Load::add(args, to[h], sum);
      }
    }
  }

  // If all scores of a warp share an element, as distances do that are clamped, their sum is one term.
  template <class Load, class Scores>
  __device__ void gather_shared(const Scores& ds, const Kept<Scores>& kept, const ProgramArgs& args,
                                const Place& place) const {
    float* first = nullptr;
    float sum = 0.f;
    bool same = true;
    own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
      float* const to = place_of<Load>(at);
      if (j == 0 && e == 0) first = shuffled(to, 0);
      same = same && to == first;
      sum += term<Load>(ds, kept, j, e, at);
    });
    if (__all_sync(~0u, same)) {
      sum = lanes_sum<32>(sum);
      if (lane_id() == 0) Load::add(args, first, sum);
    } else {
      // Places are computed anew: registers have no room for those of all scores.
      Place again = place;
      again.query = __shfl_sync(~0u, place.query, 0);
      again.key = __shfl_sync(~0u, place.key, 0);
      gather_diagonals<Load>(ds, kept, args, again);
    }
  }

  // Scores that are as far right as down of each other often share an element: of a lane the second row of a
  // fragment and the first of the fragment before, and elements of lanes that are two rows apart.
  template <class Load, class Scores>
  __device__ void gather_diagonals(const Scores& ds, const Kept<Scores>& kept,
                                   const ProgramArgs& args, const Place& place) const {
    float *to[2], *before[2];
    float sums[2] = {}, sums_before[2];
    own().template each<Scores::kColFragments>(args, place, [&](int j, int e, const At& at) {
      const float x = term<Load>(ds, kept, j, e, at);
      float* const own_to = place_of<Load>(at);
      const int column = e % 2;
      if (e < 2) {
        before[column] = j == 0 ? nullptr : to[column];
        sums_before[column] = sums[column];
        to[column] = own_to, sums[column] = x;
        return;
      }
      const bool pairs = j == 0 || before[column] == own_to;
      if (!__all_sync(~0u, pairs)) add_chains<Load>(args, before[column], sums_before[column]);
      const bool joined = __all_sync(~0u, pairs);
      add_chains<Load>(args, own_to, joined && j > 0 ? x + sums_before[column] : x);
    });
#pragma unroll
    for (int column = 0; column < 2; ++column) add_chains<Load>(args, to[column], sums[column]);
  }

  // Lanes l, l + 9, l + 18 and l + 27 are on a diagonal. The first that has an element adds the terms of all.
  template <class Load>
  static __device__ void add_chains(const ProgramArgs& args, float* to, float x) {
    constexpr int kNext = 9;
    const int lane = lane_id();
    const bool has_next = lane / 4 < 6 && lane % 4 < 3;
    const float* const next_to = shuffled(to, lane + kNext);
    const u32 joins = __ballot_sync(~0u, has_next && next_to == to);
    const auto joined = [=](int of) { return (joins >> of & 1) != 0; };
    const float next = __shfl_down_sync(~0u, x, kNext);
    if (joined(lane)) x += next;
    const float after = __shfl_down_sync(~0u, x, 2 * kNext);
    if (joined(lane) && joined((lane + kNext) % 32)) x += after;
    const bool leads = lane < kNext || lane % 4 == 0 || !joined(lane - kNext);
    if (leads) Load::add(args, to, x);
  }
  static __device__ float* shuffled(float* to, int lane) {
    return reinterpret_cast<float*>(__shfl_sync(~0u, reinterpret_cast<u64>(to), lane));
  }

  // The derivative of the changed score by an element that is read, and where its gradient is.
  template <class Load>
  static __device__ float derivative_of(const At& at, float s) {
    return Load::value(at.args, at.of_head, at.of_query, at.of_key, s, at.batch, at.head, at.query,
                       at.key, at.distance);
  }
  template <class Load>
  static __device__ auto* place_of(const At& at) {
    return Load::place(at.args, at.of_head, at.of_query, at.of_key, at.batch, at.head, at.query,
                       at.key);
  }

  // Where a score is hidden, the derivative may be anything.
  template <class Load, class Scores>
  static __device__ float term(const Scores& ds, const Kept<Scores>& kept, int j, int e,
                               const At& at) {
    const float x = ds.v[0][j][e];
    if constexpr (Load::kKept >= 0)
      return x == 0.f ? x : x * kept.of[Load::kKept].v[0][j][e];
    else
      return x == 0.f ? x : x * derivative_of<Load>(at, 0.f);
  }

  // The sum of the lanes whose queries are the same.
  static __device__ float column_sum(float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
  }

  __device__ const Own& own() const { return static_cast<const Own&>(*this); }
};

}  // namespace fa::attn::function
