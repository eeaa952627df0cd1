// SPDX-License-Identifier: Apache-2.0
// Arrays of NumPy as they lie in memory, which load.py checks when it loads the library. A function
// answers SUSPICIOUS where something may be wrong; NumPy then looks again and says what.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
  char head[OBJECT_BYTES];
  void* data;
  int dimensions;
  ptrdiff_t* shape;
  ptrdiff_t* strides;
  void* base;
  void* type;
  int flags;
} Array;

enum { CONTIGUOUS = 1 };
enum { CLEAN = 0, SUSPICIOUS = -1 };

extern const Array* none;  // Python's None

static inline int is_plain(const Array* array) {
  return array == none || (array->flags & CONTIGUOUS);
}

// Accesses of many instructions are rows of an array [instructions, lanes].
static inline long rows_of(const Array* array) {
  return array->dimensions == 2 ? array->shape[0] : 1;
}

static inline long lanes_of(const Array* array) { return array->shape[array->dimensions - 1]; }

static inline long item_bytes(const Array* array) { return array->strides[array->dimensions - 1]; }

static inline void* data(const Array* array) { return array == none ? NULL : array->data; }
