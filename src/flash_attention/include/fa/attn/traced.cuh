// SPDX-License-Identifier: Apache-2.0
// A traced function of a user in the slot Function. `Program` is what the function was printed as: values
// that need the head, the query or the key alone are computed once for all elements that share these.
#pragma once
#include <fa/attn/function_args.cuh>
#include <fa/attn/gathering.cuh>
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>

namespace fa::attn::user_function {

template <class Program, bool Listed, bool NearestFirst = false>
struct Traced : FunctionArguments<Program> {
  using FunctionArguments<Program>::of;
  static constexpr bool kScores = Program::kHasScore;
  static constexpr bool kMasks = Program::kHasMask;
  static constexpr bool kSlopes = kScores && !Program::kSlopeIsOne;
  static constexpr bool kListed = Listed, kNearestFirst = NearestFirst;
  static constexpr bool kGathers = Program::kGathers;
  static constexpr bool kTilts = Program::kTilts;
  static constexpr bool kBias = Program::kBias;

 private:
  using ProgramArgs = typename Program::Args;

  // What the function knows at an element.
  struct At {
    const ProgramArgs& args;
    const typename Program::OfHead& of_head;
    const typename Program::OfQuery& of_query;
    const typename Program::OfKey& of_key;
    int batch, head, query, key;
    float distance;  // from the query to the key
    __device__ float score(float s) const {
      return Program::score(args, of_head, of_query, of_key, s, batch, head, query, key, distance);
    }
    __device__ float slope(float s) const {
      return Program::slope(args, of_head, of_query, of_key, s, batch, head, query, key, distance);
    }
    __device__ bool is_seen() const {
      return Program::mask(args, of_head, of_query, of_key, batch, head, query, key);
    }
  };

 public:
  // What both sides do to scores: `Own` has each(), which visits the elements of a lane. With a bias, `Where`
  // is a Place that reads it: read_bias(pairs, n) gives a lane its elements of the n-th 16 columns.
  template <class Own>
  class Elements {
   public:
    // Scaled scores become those of the function.
    template <class Scores, class Args, class Where>
    __device__ void change(Scores& s, float scale, const Args& args, const Where& at) const {
      if constexpr (kScores)
        own().template each<Scores::kColFragments>(
            of(args).program, at,
            [&](int j, int e, const At& at) { s.v[0][j][e] = at.score(s.v[0][j][e] * scale); });
    }
    // The same, and slopes are multiplied by the derivatives.
    template <class Scores, class Args>
    __device__ void change_with_slopes(Scores& s, Scores& slopes, float scale, const Args& args,
                                       const Place& at) const {
      own().template each<Scores::kColFragments>(
          of(args).program, at, [&](int j, int e, const At& at) {
            slopes.v[0][j][e] *= at.slope(s.v[0][j][e] * scale);
            s.v[0][j][e] = at.score(s.v[0][j][e] * scale);
          });
    }
    // Elements that the mask does not show become `hidden`.
    template <class Scores, class Args, class Where>
    __device__ void hide(Scores& s, float hidden, const Args& args, const Where& at) const {
      if constexpr (kMasks)
        own().template each<Scores::kColFragments>(of(args).program, at,
                                                   [&](int j, int e, const At& at) {
                                                     if (!at.is_seen()) s.v[0][j][e] = hidden;
                                                   });
    }

   private:
    __device__ const Own& own() const { return static_cast<const Own&>(*this); }
  };

  // What the function knows of the two rows of a lane, which are queries: of two heads if `Rows` has several.
  template <class Rows>
  class OfQueries : public Elements<OfQueries<Rows>> {
    friend class Elements<OfQueries>;
    static constexpr int kHeads = Rows::kGroup > 1 ? 2 : 1;

   public:
    template <class Args>
    __device__ void begin(const Args& args, const Place& at) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (h < kHeads) of_head_[h] = Program::of_head(of(args).program, at.batch, head(at, h));
        of_query_[h] = Program::of_query(of(args).program, of_head_[h % kHeads], at.batch,
                                         head(at, h), query(at, h));
      }
    }

    // Tilted scores lack what depends on the row alone, which the softmax does not need; see complete().
    template <class Scores, class Args, class Where>
    __device__ void change(Scores& s, float scale, const Args& args, const Where& at) const {
      if constexpr (!kTilts) return Elements<OfQueries>::change(s, scale, args, at);
      const int distance = at.key + 2 * (lane_id() % 4) - start(at);
#pragma unroll
      for (int n = 0; n < 4 * Scores::kColFragments; ++n) {
        const int j = n / 4, h = n % 2, e = n / 2 % 2;
        const float tilt = Program::tilt(of(args).program, of_head_[h % kHeads]);
        float& x = s.v[0][j][2 * h + e];
        x = fmaf(x, scale, fmaf(tilt, static_cast<float>(8 * j + e), tilt * distance));
      }
    }
    // What change() does, in the offsets of exponentials to the base 2: one more FFMA for an element instead of
    // one and a half.
    struct Tilted {
      float scale, tilt[kHeads], first[2];
      __device__ float factor(float of_rows) const { return of_rows * scale; }
      __device__ float operator()(float of_row, int h, int column) const {
        return fmaf(-tilt[h % kHeads], static_cast<float>(column), of_row - first[h]);
      }
    };
    template <class Args, class Where>
    __device__ Tilted tilted(float scale, const Args& args, const Where& at) const {
      const float distance = static_cast<float>(at.key + 2 * (lane_id() % 4) - start(at));
      Tilted tilted{scale};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float tilt = kLog2e * Program::tilt(of(args).program, of_head_[h % kHeads]);
        tilted.tilt[h % kHeads] = tilt;
        tilted.first[h] = tilt * distance;
      }
      return tilted;
    }
    // Adds what change() left out to the largest scores of the rows.
    template <class RowEnds, class Args>
    __device__ void complete(RowEnds& ends, const Args& args, const Place& at) const {
      if constexpr (kTilts)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ends.row[h].max += Program::tilt(of(args).program, of_head_[h % kHeads]) *
                             static_cast<float>(start(at) - query(at, h));
    }

   private:
    static __device__ int row(const Place& at, int h) { return at.query + lane_id() / 4 + 8 * h; }
    static __device__ int start(const Place& at) { return Rows::position(at.query) + at.ahead; }
    static __device__ int query(const Place& at, int h) {
      return Rows::position(row(at, h)) + at.ahead;
    }
    static __device__ int head(const Place& at, int h) { return Rows::head(at.head, row(at, h)); }

    template <int Columns, class Where, class Visit>
    __device__ void each(const ProgramArgs& args, const Where& at, Visit visit) const {
      const int lane_key = at.key + 2 * (lane_id() % 4);
      const auto make = [&](int column, int h) {
        return Program::of_key(args, of_head_[h % kHeads], at.batch, head(at, h), at.key + column);
      };
      const function::Columns<Program::kReadsKeys && kHeads == 1, Columns, decltype(make)> keys(
          make);
      u32 pairs[4];  // of the bias: 16 keys of both rows
#pragma unroll
      for (int n = 0; n < 4 * Columns; ++n) {
        const int j = n / 4, h = n % 2, e = n / 2 % 2;
        auto of_key = keys(j, e, h);
        if constexpr (kBias) {
          if (n % 8 == 0) at.read_bias(pairs, j / 2);
          of_key.bias = Program::bias(pairs[j % 2 * 2 + h], e);
        }
        visit(j, 2 * h + e,
              At{args, of_head_[h % kHeads], of_query_[h], of_key, at.batch, head(at, h),
                 query(at, h), lane_key + 8 * j + e,
                 static_cast<float>(lane_key - query(at, h)) + static_cast<float>(8 * j + e)});
      }
    }

    typename Program::OfHead of_head_[kHeads];
    typename Program::OfQuery of_query_[2];
  };

  // The two rows of a lane, which are keys. It keeps what it knows of the head.
  class OfKeys : public Elements<OfKeys>, public function::Gathering<OfKeys, Program, At> {
    friend class Elements<OfKeys>;
    friend class function::Gathering<OfKeys, Program, At>;

   public:
    template <class Args>
    __device__ void begin(const Args& args, int batch, int head) {
      of_head_ = Program::of_head(of(args).program, batch, head);
    }
    // The derivatives of changed scores by the scaled ones.
    template <class Scores, class Args, class Where>
    __device__ void slopes(Scores& to, const Scores& s, float scale, const Args& args,
                           const Where& at) const {
      if constexpr (kSlopes)
        each<Scores::kColFragments>(of(args).program, at, [&](int j, int e, const At& at) {
          to.v[0][j][e] = at.slope(s.v[0][j][e] * scale);
        });
    }

    // What a function that tilts scores subtracts from the two rows of the first query of a lane.
    struct Tilted {
      float tilt, first[2];
      __device__ float operator()(int j, int e) const {
        return first[e / 2] + tilt * static_cast<float>(8 * j + e % 2);
      }
    };
    template <class Args>
    __device__ Tilted tilted(const Args& args, const Place& at) const {
      const float tilt = kLog2e * Program::tilt(of(args).program, of_head_);
      const int distance = at.query + 2 * (lane_id() % 4) + at.ahead - at.key - lane_id() / 4;
      return {tilt, {tilt * static_cast<float>(distance), tilt * static_cast<float>(distance - 8)}};
    }

   private:
    template <int Columns, class Where, class Visit>
    __device__ void each(const ProgramArgs& args, const Where& at, Visit visit) const {
      const int lane_key = at.key + lane_id() / 4;
      const int lane_query = at.query + 2 * (lane_id() % 4) + at.ahead;
      const float distance = static_cast<float>(lane_key - lane_query);
      typename Program::OfKey of_key[2];
      u32 pairs[4];  // of the bias: 16 queries of both rows
#pragma unroll
      for (int h = 0; h < 2; ++h)
        of_key[h] = Program::of_key(args, of_head_, at.batch, at.head, lane_key + 8 * h);
      const auto make = [&](int column, int) {
        return Program::of_query(args, of_head_, at.batch, at.head, at.query + at.ahead + column);
      };
      const function::Columns<Program::kReadsQueries, Columns, decltype(make)> queries(make);
#pragma unroll
      for (int n = 0; n < 4 * Columns; ++n) {
        const int j = n / 4, h = n % 2, e = n / 2 % 2;
        if constexpr (requires { at.read_bias(pairs, 0); }) {
          if (n % 8 == 0) at.read_bias(pairs, j / 2);
          of_key[h].bias = Program::bias(pairs[j % 2 * 2 + h], e);
        }
        visit(j, 2 * h + e,
              At{args, of_head_, queries(j, e, h), of_key[h], at.batch, at.head,
                 lane_query + 8 * j + e, lane_key + 8 * h,
                 distance + static_cast<float>(8 * h - 8 * j - e)});
      }
    }

    typename Program::OfHead of_head_;
  };
};

}  // namespace fa::attn::user_function
