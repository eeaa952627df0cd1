// SPDX-License-Identifier: Apache-2.0
// Arithmetic of floats that takes NumPy many passes: arrays of lanes, or rows of them.
#include <math.h>
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "array.h"

static const uint32_t SIZE_BITS = 0x7FFFFFFF, SUBNORMALS = 0x7FFFFF;

// An operand, which is repeated along axes that it has not.
typedef struct {
  const float* data;
  long row, column;  // steps
} Operand;

static int operand_of(const Array* array, Operand* operand) {
  int axes = array->dimensions;
  if (axes < 1 || axes > 2) return 0;
  long column = array->shape[axes - 1] == 1 ? 0 : array->strides[axes - 1] / (long)sizeof(float);
  long row = axes == 1 || array->shape[0] == 1 ? 0 : array->strides[0] / (long)sizeof(float);
  *operand = (Operand){array->data, row, column};
  return column == 0 || column == 1;
}

// Whether any float is subnormal.
long has_subnormals(const Array* array) {
  if (!is_plain(array)) return SUSPICIOUS;
  const uint32_t* bits = array->data;
  long count = 1;
  for (int axis = 0; axis < array->dimensions; ++axis) count *= array->shape[axis];
  uint32_t found = 0;
  for (long i = 0; i < count; ++i) found |= (bits[i] & SIZE_BITS) - 1 < SUBNORMALS;
  return found;
}

// a b + c, rounded once. What is not a number is left to NumPy, which says which one it is.
long fused_multiply_add(const Array* a, const Array* b, const Array* c, const Array* out) {
  Operand x, y, z;
  if (!operand_of(a, &x) || !operand_of(b, &y) || !operand_of(c, &z)) return SUSPICIOUS;
  long rows = rows_of(out), columns = lanes_of(out);
  int missing = 0;
  for (long row = 0; row < rows; ++row) {
    const float *first = x.data + row * x.row, *second = y.data + row * y.row;
    const float* third = z.data + row * z.row;
    float* to = (float*)out->data + row * columns;
    if (x.column && y.column && z.column)
      for (long i = 0; i < columns; ++i) {
        to[i] = fmaf(first[i], second[i], third[i]);
        missing |= to[i] != to[i];
      }
    else
      for (long i = 0; i < columns; ++i) {
        to[i] = fmaf(first[i * x.column], second[i * y.column], third[i * z.column]);
        missing |= to[i] != to[i];
      }
  }
  return missing ? SUSPICIOUS : CLEAN;
}

// The larger of two numbers, or the only one; of two zeros the positive one. `sign` is -1 for the
// smaller one.
long larger_of_two(const Array* a, const Array* b, double sign, const Array* out) {
  Operand x, y;
  if (!operand_of(a, &x) || !operand_of(b, &y)) return SUSPICIOUS;
  float turned = sign;
  long rows = rows_of(out), columns = lanes_of(out);
  int missing = 0;
  for (long row = 0; row < rows; ++row) {
    const float *first = x.data + row * x.row, *second = y.data + row * y.row;
    float* to = (float*)out->data + row * columns;
    for (long i = 0; i < columns; ++i) {
      float mine = turned * first[i * x.column], other = turned * second[i * y.column];
      missing |= mine != mine || other != other;
      float most = mine > other ? mine : other;
      // Equal numbers differ in the sign of a zero alone: their sum has the sign of the larger.
      to[i] = turned * (mine == other && mine == 0 ? mine + other : most);
    }
  }
  return missing ? SUSPICIOUS : CLEAN;
}

enum { NAN_16 = 0x7FFF, INFINITY_F16 = 0x7C00 };

static inline uint32_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? NAN_16 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

#ifdef __F16C__
static inline uint32_t to_f16(float value) {
  uint32_t half = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
  return (half & NAN_16) > INFINITY_F16 ? NAN_16 : half;
}
#endif

// Two floats as two of 16 bits in a word, rounded to the nearest; NaN is the one of the PTX ISA.
long pack_halves(const Array* low, const Array* high, long bf16, const Array* out) {
  Operand x, y;
  if (!operand_of(low, &x) || !operand_of(high, &y)) return SUSPICIOUS;
#ifndef __F16C__
  if (!bf16) return SUSPICIOUS;
#endif
  long columns = lanes_of(out);
  for (long row = 0; row < rows_of(out); ++row) {
    const float *first = x.data + row * x.row, *second = y.data + row * y.row;
    uint32_t* to = (uint32_t*)out->data + row * columns;
    for (long i = 0; i < columns && bf16; ++i)
      to[i] = to_bf16(first[i * x.column]) | to_bf16(second[i * y.column]) << 16;
#ifdef __F16C__
    for (long i = 0; i < columns && !bf16; ++i)
      to[i] = to_f16(first[i * x.column]) | to_f16(second[i * y.column]) << 16;
#endif
  }
  return CLEAN;
}
