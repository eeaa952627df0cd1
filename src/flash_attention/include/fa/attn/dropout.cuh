// SPDX-License-Identifier: Apache-2.0
// Dropout: which of the weights P are dropped depends on the state of a call, the head, the query and the key
// alone, so that all kernels of both passes agree.
//
// Philox4x32-7 makes four words of a key, the seed, and of a counter. Their 16 bytes decide on 16 weights of
// a 16 x 16 tile of queries and keys: of queries 2 x + {0, 1, 8, 9} and keys 2 y + {0, 1, 8, 9}, with x and y
// below 4. Query q and key k have
//   counter = {4 (q / 16) + x, 4 (k / 16) + y, head of all sequences + high half of offset, low half},
//   word 2 (q % 2) + k % 2,  byte 2 (k / 8 % 2) + q / 8 % 2.
//
// A lane has two rows of an accumulator of S, or of S^T, and so half of the 16 weights; the other half has the
// lane of the neighbouring rows. Each of the two makes the words of every other tile, and they exchange bits.
#pragma once
#include <fa/attn/sequence.cuh>
#include <fa/core.cuh>
#include <fa/ptx/math.cuh>

namespace fa::attn::dropout {

// A weight is kept if its byte is below a threshold.
class Philox {
  static constexpr int kGroup = 8;  // tiles whose decisions are in two registers

 public:
  // A register has the bits of every other tile of a group: two words of each, and four bytes of a word. Word w
  // has its bits 7, 15, 23 and 31 w places further down.
  template <RowsOf Side, int Tiles>
  struct Dropped {
    static constexpr int kGroups = (Tiles + kGroup - 1) / kGroup;
    static constexpr bool kIsOneWord = Tiles <= kGroup / 2;
    u32 bits[kGroups][2];

    // The byte of pair e of a tile, in the order of an operand: columns 8 (e / 2), rows 8 (e % 2).
    static __device__ constexpr int byte(int e) {
      return Side == RowsOf::kQueries ? e : e % 2 * 2 + e / 2;
    }
    static __device__ constexpr int shift(int n, int word) { return n % kGroup / 2 * 2 + word; }

    __device__ void clear(u32 (&pairs)[4], int n) const {
      const u32 of_tile = bits[n / kGroup][n % 2];
      const u32 first = of_tile << shift(n, 0), second = of_tile << shift(n, 1);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pairs[e] = ptx::without_bits(
            pairs[e], ptx::permute(first, second, 0xcc88 + 0x1111 * byte(e)));  // eight signs
    }
    // The bits of up to four tiles are in the upper halves of bytes, so that two registers fit into one word.
    __device__ u32 one_word() const { return bits[0][0] | bits[0][1] >> kGroup / 2; }
    __device__ void set(u32 word) { bits[0][0] = word, bits[0][1] = word << kGroup / 2; }
    __device__ float kept(float x, int n, int e, int word) const {
      const u32 bit = 1u << (8 * byte(e) + 7 - shift(n, word));
      return bits[n / kGroup][n % 2] & bit ? 0.f : x;
    }
  };

  template <class Args>
  __device__ explicit Philox(const Args& args)
      : seed_{low(args.rng_state[0]), high(args.rng_state[0])},
        offset_{low(args.rng_state[1]), high(args.rng_state[1])} {}

  template <class Args>
  static __device__ float scale(const Args& args) {
    return args.dropout_scale;
  }

  __device__ void begin_head(int head_of_all) { head_ = offset_[1] + head_of_all; }
  __device__ void next_head() { ++head_; }

  // `Together` calls go through their rounds side by side. The more, the more registers they take.
  template <int Together = kGroup / 2, RowsOf Side, int Tiles, class Args>
  __device__ void draw(Dropped<Side, Tiles>& dropped, int row, int column, const Args& args) const {
    constexpr bool kQueries = Side == RowsOf::kQueries;
    constexpr int kGroups = Dropped<Side, Tiles>::kGroups;
    constexpr int kCalls = (Tiles + 1) / 2;  // a lane makes the words of every other tile
    const bool is_odd = lane_id() / 4 % 2;   // the row, and every other tile
    const u32 of_row = row / 4 + lane_id() / 8;
    const u32 of_column = column / 4 + lane_id() % 4 + (is_odd ? 4 : 0);
    u32 of_even_rows[kGroups] = {}, of_odd_rows[kGroups] = {};
#pragma unroll(kGroups > 1 ? kCalls : 1)
    for (int first = 0; first < kCalls; first += Together) {
      u32 words[Together][4];
#pragma unroll
      for (int i = 0; i < Together; ++i) {
        const u32 tile_column = of_column + 8 * (first + i);
        words[i][0] = kQueries ? of_row : tile_column;
        words[i][1] = kQueries ? tile_column : of_row;
        words[i][2] = head_;
        words[i][3] = offset_[0];
      }
      generate(words);
#pragma unroll
      for (int i = 0; i < Together; ++i)
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          if (kCalls % Together && first + i >= kCalls) continue;
          const int call = first + i, group = kGroups > 1 ? call / (kGroup / 2) : 0;
          const int shift = 2 * (call % (kGroup / 2)) + word;
          of_even_rows[group] |=
              signs(words[i][kQueries ? word : 2 * word], args) >> shift & kSigns >> shift;
          of_odd_rows[group] |=
              signs(words[i][kQueries ? 2 + word : 2 * word + 1], args) >> shift & kSigns >> shift;
        }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const u32 own = is_odd ? of_odd_rows[group] : of_even_rows[group];
      const u32 other = __shfl_xor_sync(~0u, is_odd ? of_even_rows[group] : of_odd_rows[group], 4);
      dropped.bits[group][0] = is_odd ? other : own;
      dropped.bits[group][1] = is_odd ? own : other;
    }
  }

 private:
  static constexpr u32 kSigns = 0x80808080;

  static __device__ u32 low(i64 x) { return static_cast<u32>(x); }
  static __device__ u32 high(i64 x) { return static_cast<u32>(x >> 32); }

  // The calls go through their rounds together, so that they share the keys of a round.
  template <int Calls>
  __device__ void generate(u32 (&words)[Calls][4]) const {
    u32 key[2] = {seed_[0], seed_[1]};
#pragma unroll
    for (int round = 0; round < 7; ++round) {
#pragma unroll
      for (u32(&c)[4] : words) {
        const u64 first = static_cast<u64>(0xd2511f53u) * c[0];
        const u64 second = static_cast<u64>(0xcd9e8d57u) * c[2];
        c[0] = high(second) ^ c[1] ^ key[0];
        c[1] = low(second);
        c[2] = high(first) ^ c[3] ^ key[1];
        c[3] = low(first);
      }
      key[0] += 0x9e3779b9u;
      key[1] += 0xbb67ae85u;
    }
  }

  // Sets the sign of every byte that is not below the threshold. The sum compares the bits below the sign; the
  // byte's own sign has to be set, too, or one of the two suffices if the threshold is below 128.
  template <class Args>
  static __device__ u32 signs(u32 bytes, const Args& args) {
    const u32 sum = (bytes & ~kSigns) + args.dropout_addend;
    return (sum & bytes) | ((sum | bytes) & args.dropout_either);
  }

  u32 seed_[2], offset_[2], head_;
};

}  // namespace fa::attn::dropout
