// SPDX-License-Identifier: Apache-2.0
// Dropout: which of the weights P are dropped depends on the state of a call, the head, the query and the key
// alone, so that all kernels of both passes agree.
//
// Every weight has a number below 256, and is kept if that is below a threshold. Philox4x32-7 makes four words of
// a key, the seed, and of a counter. The eight words of two counters have the numbers of 32 weights: bit i of
// word w is bit w of number i, so that one instruction compares a bit of 32 numbers. These weights are a cell of a
// 16 x 16 tile of queries and keys: queries 2 x + {0, 1, 8, 9} and keys 4 y + {0, 1, 2, 3, 8, 9, 10, 11}, with x
// below 4 and y below 2. Query q and key k have
//   counter = {4 (q / 16) + x, 4 (k / 16) + 2 y + w / 4, head of all sequences + high half of offset, low half},
//   i = 16 (k / 8 % 2) + 8 (q / 8 % 2) + 4 (k / 2 % 2) + 2 (q % 2) + k % 2.
//
// A lane has two rows of an accumulator of S, or of S^T, and so a quarter of a cell. Each of the four lanes of a
// cell makes it for another of four tiles, and they exchange bits.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::dropout {

class Philox {
  static constexpr int kLanes = 4;           // of a cell, and tiles whose cells they make
  static constexpr int kGroup = 2 * kLanes;  // tiles whose decisions are in two registers

 public:
  static constexpr bool kDrops = true;

  // Byte `byte(e)` of a register has bits of pair e: of its two weights, in the tiles n with the same n / 2 % 2.
  template <RowsOf Side, int Tiles>
  struct Dropped {
    static constexpr int kGroups = (Tiles + kGroup - 1) / kGroup;
    u32 bits[kGroups][2];

    // Pairs are in the order of an operand: columns 8 (e / 2), rows 8 (e % 2).
    static __device__ constexpr int byte(int e) {
      return Side == RowsOf::kQueries ? e : e % 2 * 2 + e / 2;
    }
    static __device__ constexpr int bit(int n, int word) {
      const int low = Side == RowsOf::kQueries ? n % 2 * 2 + word : word * 2 + n % 2;
      return n % kGroup / kLanes * 4 + low;
    }
    __device__ u32 of_tile(int n) const { return bits[n / kGroup][n / 2 % 2]; }

    __device__ void clear(u32 (&pairs)[4], int n) const {
      const u32 first = of_tile(n) << (7 - bit(n, 0)), second = of_tile(n) << (7 - bit(n, 1));
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pairs[e] = ptx::without_bits(
            pairs[e], ptx::permute(first, second, 0xcc88 + 0x1111 * byte(e)));  // eight signs
    }
    __device__ float kept(float x, int n, int e, int word) const {
      return of_tile(n) & 1u << (8 * byte(e) + bit(n, word)) ? 0.f : x;
    }
  };

  template <class Args>
  static __device__ float scale(const Args& args) {
    return args.dropout_scale;
  }

  __device__ void begin_head(int head_of_all) { head_ = head_of_all; }
  __device__ void next_head() { ++head_; }

  template <RowsOf Side, int Tiles, class Args>
  __device__ void draw(Dropped<Side, Tiles>& dropped, int row, int column, const Args& args) const {
    constexpr bool kQueries = Side == RowsOf::kQueries;
    constexpr int kCells = (Tiles + kLanes - 1) / kLanes;
    // The lanes of a cell: those of keys 2 apart, and those of rows 1 apart.
    constexpr int kKeyLane = kQueries ? 1 : 8, kRowLane = 4;
    const int lane = lane_id(), tile = lane / kKeyLane % 2 + lane / kRowLane % 2 * 2;
    const int x = kQueries ? lane / 8 : lane % 4, y = kQueries ? lane % 4 / 2 : lane / 16;
    // Read for each block: kept, the state would take registers that the products of wide heads need.
    const u64 seed = args.rng_state[0], offset = args.rng_state[1];
    const int of_row = row / 4, of_column = column / 4 + 4 * tile;
    const int of_query = (kQueries ? of_row : of_column) + x;
    const int of_key = (kQueries ? of_column : of_row) + 2 * y;
#pragma unroll
    for (int group = 0; group < dropped.kGroups; ++group) {
      u32(&bits)[2] = dropped.bits[group];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int cell = 2 * group + i, further = 4 * kLanes * cell;
        bits[i] = cell < kCells ? decide(seed, offset, of_query + (kQueries ? 0 : further),
                                         of_key + (kQueries ? further : 0), args)
                                : 0;
      }
      exchange<kKeyLane, 4>(bits);
      exchange<kRowLane, kQueries ? 2 : 1>(bits);
    }
  }

 private:
  static __device__ u32 low(u64 x) { return static_cast<u32>(x); }
  static __device__ u32 high(u64 x) { return static_cast<u32>(x >> 32); }

  // Which weights of a cell are dropped: those whose number is not below the threshold. The highest bit that
  // differs decides.
  template <class Args>
  __device__ u32 decide(u64 seed, u64 offset, u32 of_query, u32 of_key, const Args& args) const {
    u32 words[2][4], dropped = ~0u;
#pragma unroll
    for (int call = 0; call < 2; ++call) {
      words[call][0] = of_query, words[call][1] = of_key + call;
      words[call][2] = head_ + high(offset), words[call][3] = low(offset);
    }
    generate(words, low(seed), high(seed));
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const u32 numbers = words[w / 4][w % 4], is_zero = args.dropout_zeros[w];
      dropped = (numbers & dropped) | (is_zero & (numbers | dropped));
    }
    return dropped;
  }

  // The calls go through their rounds together, so that they share the keys of a round.
  static __device__ void generate(u32 (&words)[2][4], u32 first_key, u32 second_key) {
#pragma unroll
    for (int round = 0; round < 7; ++round) {
#pragma unroll
      for (u32(&c)[4] : words) {
        const u64 first = static_cast<u64>(0xd2511f53u) * c[0];
        const u64 second = static_cast<u64>(0xcd9e8d57u) * c[2];
        c[0] = high(second) ^ c[1] ^ first_key;
        c[1] = low(second);
        c[2] = high(first) ^ c[3] ^ second_key;
        c[3] = low(first);
      }
      first_key += 0x9e3779b9u;
      second_key += 0xbb67ae85u;
    }
  }

  // A lane keeps the bits whose number has the same bit `Place` as its id has bit `Lane`, and gets those of the
  // lane that differs there. That bit then says which register bits came from, and a register which lane.
  template <int Lane, int Place>
  static __device__ void exchange(u32 (&bits)[2]) {
    constexpr u32 kUnset = Place == 4 ? 0x0f0f0f0f : Place == 2 ? 0x33333333 : 0x55555555;
    const u32 unset = (bits[0] & kUnset) | (bits[1] << Place & ~kUnset);
    const u32 set = (bits[0] >> Place & kUnset) | (bits[1] & ~kUnset);
    const bool is_set = lane_id() / Lane % 2;
    const u32 mine = is_set ? set : unset;
    const u32 other = __shfl_xor_sync(~0u, is_set ? unset : set, Lane);
    bits[0] = is_set ? other : mine;
    bits[1] = is_set ? mine : other;
  }

  int head_;
};

}  // namespace fa::attn::dropout
