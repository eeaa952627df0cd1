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

// The A operand of m16n8k16 products: registers [steps, 4, lanes] as [warps, 16, 16 * steps].
// `f16_values` is none for bf16.
long widen_a(const Array* words, long steps, long lanes, const Array* f16_values,
             const Array* out) {
  const float* values = data(f16_values);
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long step = 0; step < steps; ++step)
      for (long part = 0; part < 4; ++part) {
        const uint32_t* word = (uint32_t*)words->data + (step * 4 + part) * lanes + warp * WARP;
        float* to = (float*)out->data + (warp * 16 + (part & 1) * 8) * 16 * steps;
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

// Products [warps, 16, 8 * fragments] as registers [4 * fragments, lanes].
long spread(const Array* products, long fragments, long lanes, const Array* out) {
  for (long warp = 0; warp < lanes / WARP; ++warp)
    for (long fragment = 0; fragment < fragments; ++fragment)
      for (long part = 0; part < 4; ++part) {
        const float* from = (float*)products->data + (warp * 16 + (part >> 1) * 8) * 8 * fragments;
        from += fragment * 8 + (part & 1);
        float* to = (float*)out->data + (fragment * 4 + part) * lanes + warp * WARP;
        for (long lane = 0; lane < WARP; ++lane)
          to[lane] = from[lane / 4 * 8 * fragments + lane % 4 * 2];
      }
  return 0;
}

// One step of the operands of wgmmas, 8 elements of every chunk, into [groups, rows, steps * depth].
// Where they are transposed, `depth` chunks hold 8 rows as their columns.
long widen_chunks(const Array* chunks, const Array* memory, const Array* f16_values, long depth,
                  long step, long transposed, const Array* out) {
  if (!is_plain(chunks)) return SUSPICIOUS;
  const int64_t* chunk = chunks->data;
  const uint16_t* halves = memory->data;
  const float* values = data(f16_values);
  long pitch = out->shape[2];
  float* to = (float*)out->data + step * depth;
  long count = rows_of(chunks) * lanes_of(chunks);
  for (long i = 0; i < count; ++i) {
    const uint16_t* half = halves + chunk[i] * ROWS;
    if (transposed)
      for (long e = 0; e < ROWS; ++e)
        to[(i / depth * ROWS + e) * pitch + i % depth] = widened(half[e], values);
    else
      for (long e = 0; e < ROWS; ++e)
        to[i * ROWS / depth * pitch + i * ROWS % depth + e] = widened(half[e], values);
  }
  return CLEAN;
}
