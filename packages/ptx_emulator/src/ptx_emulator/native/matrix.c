// SPDX-License-Identifier: Apache-2.0
// Matrices of 16-bit elements between shared memory, registers and products. A register is a row
// of words with one of every lane; 4 lanes hold a row of 8 elements.
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "array.h"

enum { WARP = 32, ROWS = 8, WORDS = 4, CHUNK = 16 };

// ldmatrix: rows of 16 bytes at the offsets [k, lanes] that lanes give, 4 matrices a warp.
long read_matrices(const Array* where, const Array* memory, long transposed, const Array* out) {
  const int64_t* offset = where->data;
  const char* bytes = memory->data;
  long lanes = where->shape[1];
  for (long k = 0; k < where->shape[0]; ++k)
    for (long warp = 0; warp < lanes; warp += WARP)
      for (long matrix = 0; matrix < 4; ++matrix) {
        uint32_t words[ROWS][WORDS];
        for (long row = 0; row < ROWS; ++row)
          memcpy(words[row], bytes + offset[k * lanes + warp + matrix * ROWS + row], CHUNK);
        uint32_t* to = (uint32_t*)out->data + (k * 4 + matrix) * lanes + warp;
        if (!transposed) {
          memcpy(to, words, sizeof words);
          continue;
        }
        uint16_t (*halves)[ROWS] = (uint16_t (*)[ROWS])words, *half = (uint16_t*)to;
        for (long column = 0; column < ROWS; ++column)
          for (long row = 0; row < ROWS; ++row) *half++ = halves[row][column];
      }
  return 0;
}

static inline float widened(uint32_t half, const float* f16_values) {
#ifdef __F16C__
  if (f16_values) return _cvtsh_ss(half);
#else
  if (f16_values) return f16_values[half];
#endif
  uint32_t bits = half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The row of matrices [warps, ...] that belongs to a warp.
static inline long place_of(long warp, const Array* places) {
  return places == none ? warp : ((const int64_t*)places->data)[warp];
}

// The A operand of m16n8k16 products: registers [steps, 4, lanes] as [warps, 16, 16 * steps], with
// the warps at `places`. `f16_values` is none for bf16.
long widen_a(const Array* words, long steps, long lanes, const Array* f16_values,
             const Array* places, const Array* out) {
  const float* values = data(f16_values);
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long step = 0; step < steps; ++step)
      for (long part = 0; part < 4; ++part) {
        const uint32_t* word = (uint32_t*)words->data + (step * 4 + part) * lanes + warp * WARP;
        float* to = (float*)out->data;
        to += (place_of(warp, places) * 16 + (part & 1) * 8) * 16 * steps;
        to += step * 16 + (part >> 1) * 8;
        for (long lane = 0; lane < WARP; ++lane) {
          float* pair = to + lane / 4 * 16 * steps + lane % 4 * 2;
          pair[0] = widened(word[lane] & 0xFFFF, values);
          pair[1] = widened(word[lane] >> 16, values);
        }
      }
  return 0;
}

// The B operand: registers [fragments, steps, 2, lanes] as [warps, 16 * steps, 8 * fragments].
long widen_b(const Array* words, long fragments, long steps, long lanes, const Array* f16_values,
             const Array* out) {
  const float* values = data(f16_values);
  long width = 8 * fragments;
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long step = 0; step < steps; ++step)
      for (long part = 0; part < 2; ++part)
        for (long fragment = 0; fragment < fragments; ++fragment) {
          const uint32_t* word = words->data;
          word += ((fragment * steps + step) * 2 + part) * lanes + warp * WARP;
          float* to = (float*)out->data + (warp * 16 * steps + step * 16 + part * 8) * width;
          to += fragment * 8;
          for (long lane = 0; lane < WARP; ++lane) {
            float* pair = to + lane % 4 * 2 * width + lane / 4;
            pair[0] = widened(word[lane] & 0xFFFF, values);
            pair[width] = widened(word[lane] >> 16, values);
          }
        }
  return 0;
}

// Where a register of a warp lies in its matrix [16, 8 * fragments].
static inline long first_of(long warp, long fragments, long fragment, long part) {
  return (warp * 16 + (part >> 1) * 8) * 8 * fragments + fragment * 8 + (part & 1);
}

static inline long lane_of(long lane, long fragments) {
  return lane / 4 * 8 * fragments + lane % 4 * 2;
}

// Products [warps, 16, 8 * fragments], of warps at `places`, as registers [4 * fragments, lanes].
long spread(const Array* products, long fragments, long lanes, const Array* places,
            const Array* out) {
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long fragment = 0; fragment < fragments; ++fragment)
      for (long part = 0; part < 4; ++part) {
        const float* from = products->data;
        from += first_of(place_of(warp, places), fragments, fragment, part);
        float* to = (float*)out->data + (fragment * 4 + part) * lanes + warp * WARP;
        for (long lane = 0; lane < WARP; ++lane) to[lane] = from[lane_of(lane, fragments)];
      }
  return CLEAN;
}

// The other way round.
long collect(const Array* registers, long fragments, long lanes, const Array* places,
             const Array* out) {
  if (!is_plain(registers)) return SUSPICIOUS;
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long fragment = 0; fragment < fragments; ++fragment)
      for (long part = 0; part < 4; ++part) {
        const float* from = registers->data;
        from += (fragment * 4 + part) * lanes + warp * WARP;
        float* to = out->data;
        to += first_of(place_of(warp, places), fragments, fragment, part);
        for (long lane = 0; lane < WARP; ++lane) to[lane_of(lane, fragments)] = from[lane];
      }
  return CLEAN;
}

static inline void widen_eight(const uint16_t* half, const float* f16_values, float* to) {
#if defined(__F16C__) && defined(__AVX__)
  if (f16_values) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)half)));
    return;
  }
#endif
  for (long e = 0; e < ROWS; ++e) to[e] = widened(half[e], f16_values);
}

// The operands of wgmmas from chunks [steps, n] of 8 elements of each group, which lie from its
// chunk of `starts` [g] on: into the columns of [groups, rows, depth of all] from `first` on. Where
// they are transposed, the `depth` chunks of a step hold 8 rows as their columns.
long widen_chunks(const Array* chunks, const Array* starts, const Array* memory,
                  const Array* f16_values, long depth, long first, long transposed,
                  const Array* out) {
  if (!is_plain(chunks)) return SUSPICIOUS;
  const int64_t *chunk = chunks->data, *start = starts->data;
  const float* values = data(f16_values);
  long rows = out->shape[1], pitch = out->shape[2], columns = depth / ROWS;
  for (long g = 0; g < out->shape[0]; ++g) {
    const uint16_t* halves = (uint16_t*)memory->data + start[g] * ROWS;
    const int64_t* at = chunk;
    for (long step = 0; step < chunks->shape[0]; ++step) {
      float* to = (float*)out->data + g * rows * pitch + first + step * depth;
      for (long row = 0; row < rows && !transposed; ++row)
        for (long column = 0; column < columns; ++column)
          widen_eight(halves + *at++ * ROWS, values, to + row * pitch + column * ROWS);
      for (long row = 0; row < rows && transposed; row += ROWS)
        for (long k = 0; k < depth; ++k) {
          float turned[ROWS];
          widen_eight(halves + *at++ * ROWS, values, turned);
          for (long e = 0; e < ROWS; ++e) to[(row + e) * pitch + k] = turned[e];
        }
    }
  }
  return CLEAN;
}
