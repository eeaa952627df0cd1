// SPDX-License-Identifier: Apache-2.0
// Stream-K on the device: a CTA that has all key blocks of a tile stores O. Otherwise it stores a partial O
// in fp32 and its log-sum-exp, and the last CTA to do so combines all of the tile.
#pragma once
#include <fa/sm90/output.cuh>
#include <fa/sm90/tile_order/on_device.cuh>

namespace fa::sm90 {

// The partial results of a tile. A CTA has two at most: of a tile that begins before its share, and of one
// that ends after it.
template <class Config>
struct Pieces {
  using Rows = PartialRows<typename Config::Rows, Shape<Config>::kBR>;

  const ForwardKernelArgs& args;
  const Piece& piece;
  const Team team;
  const Rows rows;

  __device__ Pieces(const ForwardKernelArgs& args, const Piece& piece)
      : args(args), piece(piece), team(args.heads / Config::Rows::kGroup), rows(args) {}

  __device__ int count() const { return piece.end_team - piece.first_team; }
  // Row `row` of the n-th piece.
  __device__ i64 row(int n, int row) const {
    return rows.at(2 * team.peer(piece.first_team + n) + (n == 0), row);
  }
  __device__ int own() const { return team.own() - piece.first_team; }
  __device__ int* arrived() const {
    return args.tile_counter + team.peer(piece.first_team) * Config::kConsumers;
  }
};

// Combines rows of a tile. A row has as many lanes as it takes to hold eight columns each.
template <class Config, class Warp>
class CombinedRows {
  static constexpr int kLaneColumns = 8;
  static constexpr int kLanes = Config::kDHead <= 64 ? 8 : Config::kDHead <= 128 ? 16 : 32;
  static constexpr int kTogether = kWarpSize / kLanes;  // rows of a warp
  static constexpr int kAtOnce = 8;                     // partial results in registers
  static_assert(kLanes * kLaneColumns >= Config::kDHead);

 public:
  __device__ CombinedRows(const Warp& warp, const Pieces<Config>& pieces)
      : warp_(warp), pieces_(pieces), args_(warp.args), column_(kLaneColumns * lane()) {}

  __device__ void store() const {
    const int used =
        min(warp_.sequence.q_len * Config::Rows::kGroup - warp_.tile_row, Shape<Config>::kRows);
#pragma unroll 1
    for (int r = warp_in_group() * kTogether; r < used; r += kWarpgroupWarps * kTogether)
      store_row(warp_.tile_row + min(r + lane_id() / kLanes, used - 1));
  }

 private:
  static __device__ int lane() { return lane_id() % kLanes; }

  // The lanes of the row share its weights, exp(lse - offset) / sum.
  __device__ void store_row(int row) const {
    const int head = Config::Rows::head(warp_.tile.head, row);
    const float sink = args_.sinks ? args_.sinks[head] : -attn::kInfinity;
    float max = sink, sum = sink == -attn::kInfinity ? 0.f : 1.f, o[kLaneColumns] = {};
#pragma unroll 1
    for (int first = 0; first < pieces_.count(); first += kLanes) {
      const int count = min(pieces_.count() - first, kLanes);
      const float lse =
          lane() < count ? args_.lse_partial[pieces_.row(first + lane(), row)] : -attn::kInfinity;
      float weight = 0.f;
#pragma unroll 1
      for (int n = 0; n < count; n += kAtOnce) {
        ptx::Chunk parts[kAtOnce][2];
        read(parts, first + n, row);  // on their way while the weights are computed
        if (n == 0) {
          const float larger = attn::lanes_max<kLanes>(fmaxf(max, lse));
          const float offset = larger == -attn::kInfinity ? 0.f : larger;
          const float shrink = ptx::exp2((max - offset) * kLog2e);
          weight = ptx::exp2((lse - offset) * kLog2e);
          sum = sum * shrink + attn::lanes_sum<kLanes>(weight);
#pragma unroll
          for (float& x : o) x *= shrink;
          max = larger;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          add(o, n + i < count ? __shfl_sync(~0u, weight, (n + i) % kLanes, kLanes) : 0.f,
              parts[i]);
      }
    }
    store_columns(row, head, o, sum == 0.f ? 0.f : 1.f / sum);
    if (args_.lse && lane() == 0)
      args_.lse[warp_.sequence.q_batch * args_.lse_batch_stride + head * args_.lse_head_stride +
                o_row(row)] = sum == 0.f ? -attn::kInfinity : max + ptx::log(sum);
  }

  // A lane without columns, and one beyond the last part, read something that is not used.
  __device__ void read(ptx::Chunk (&parts)[kAtOnce][2], int first, int row) const {
    const int column = min(column_, args_.d_v - kLaneColumns);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float* const from = args_.o_partial +
                                pieces_.row(min(first + i, pieces_.count() - 1), row) * args_.d_v +
                                column;
      parts[i][0] = ptx::ld_global_16(from);
      parts[i][1] = ptx::ld_global_16(from + 4);
    }
  }

  static __device__ void add(float (&o)[kLaneColumns], float weight, const ptx::Chunk (&part)[2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      o[4 * n] += weight * __uint_as_float(part[n].x);
      o[4 * n + 1] += weight * __uint_as_float(part[n].y);
      o[4 * n + 2] += weight * __uint_as_float(part[n].z);
      o[4 * n + 3] += weight * __uint_as_float(part[n].w);
    }
  }

  __device__ void store_columns(int row, int head, const float (&o)[kLaneColumns],
                                float factor) const {
    if (column_ >= args_.d_v) return;
    char* const to = static_cast<char*>(args_.o) +
                     (warp_.sequence.q_batch * args_.o_stride.batch + head * args_.o_stride.head +
                      o_row(row) * args_.o_stride.seq + column_) *
                         kElementBytes;
    const auto pair = [&](int n) { return Config::DType::pack(o[n] * factor, o[n + 1] * factor); };
    ptx::st_global_16(to, {pair(0), pair(2), pair(4), pair(6)});
  }
  __device__ i64 o_row(int row) const {
    return warp_.sequence.q_first + Config::Rows::position(row);
  }

  const Warp& warp_;
  const Pieces<Config>& pieces_;
  const ForwardKernelArgs& args_;
  const int column_;  // a lane's first
};

}  // namespace fa::sm90

namespace fa::sm90::output {

struct WholeOrCombined : OutsideQueries {
  static constexpr bool kOwnBuffer = false;

  template <class Consumer, class Warp>
  static __device__ void store(Consumer& consumer, const Warp& warp, const attn::RowEnds& ends) {
    using Config = typename Warp::Config;
    const Pieces<Config> pieces(warp.args, warp.tile.piece);
    const bool is_whole = warp.tile.piece.is_whole();
    if (is_whole)
      Direct::store(consumer, warp, ends);
    else
      store_part(warp, ends, pieces);
    // All tiles take the barriers: ptxas of CUDA 13.0 crashes where a branch of the loop has some.
    sync_warpgroup(consumer.warpgroup());  // all four warps have stored their part
    if (threadIdx.x % kWarpgroupSize == 0)
      ptx::st_shared_4(consumer.word(), !is_whole && arrives_last(pieces, consumer.warpgroup()));
    sync_warpgroup(consumer.warpgroup());  // the answer is there
    if (ptx::ld_shared_4(consumer.word())) CombinedRows<Config, Warp>(warp, pieces).store();
    sync_warpgroup(consumer.warpgroup());  // all four warps have read the answer
  }

 private:
  template <class Warp, class Pieces>
  static __device__ void store_part(const Warp& warp, const attn::RowEnds& ends,
                                    const Pieces& pieces) {
    const ForwardKernelArgs& args = warp.args;
    warp.store_pairs([&](int r, int h) {
      const i64 row = pieces.row(pieces.own(), warp.row(r));
      if (lane_id() % 4 == 0) args.lse_partial[row] = ends.row[h].lse();
      float* const to = ptx::computed_once(args.o_partial + row * args.d_v);
      return [to](int column, float x, float y) { ptx::st_global_8(to + column, x, y); };
    });
  }

  // The first CTA of a tile has a counter for each of its consumers, because a share has one tile at most
  // that ends after it. The last CTA to arrive resets it to zero.
  template <class Pieces>
  static __device__ bool arrives_last(const Pieces& pieces, int consumer) {
    int* const arrived = pieces.arrived() + consumer;
    __threadfence();  // other CTAs see the part before this one arrives
    const bool last = atomicAdd(arrived, 1) == pieces.count() - 1;
    __threadfence();  // the last CTA sees the parts of all
    if (last) *arrived = 0;
    return last;
  }
};

}  // namespace fa::sm90::output
