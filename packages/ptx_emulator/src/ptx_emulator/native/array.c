// SPDX-License-Identifier: Apache-2.0
#include "array.h"

const Array* none;

void remember_none(const Array* object) { none = object; }

// What load.py compares with what NumPy says of the same array.
void layout(const Array* array, long* out) {
  out[0] = (long)array->data, out[1] = array->dimensions, out[2] = array->shape[0];
  out[3] = array->strides[0], out[4] = array->flags & CONTIGUOUS;
}

// Replace arrays in a frame, which are the numbers of these bits, by where their elements are.
long find_arrays(const Array* frame, uint64_t bits) {
  int64_t* number = frame->data;
  for (; bits; bits &= bits - 1) {
    int place = __builtin_ctzll(bits);
    number[place] = (int64_t)((const Array*)number[place])->data;
  }
  return CLEAN;
}
