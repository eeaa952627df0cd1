// SPDX-License-Identifier: Apache-2.0
// The products of a warp. The slot FragmentLoads says when fragments are read, the slot MmaOrder in which order
// the products of a step are issued.
#pragma once
#include <fa/dtype.cuh>

namespace fa::sm80 {

namespace example {  // the smallest arguments that exercise a concept
struct Read {
  __device__ void operator()(int) const {}
};
struct Mma {
  __device__ void operator()(int, int) const {}
};
}  // namespace example

template <class T>
concept FragmentLoadsSlot = requires(example::Read read, int step) {
  T::template begin<2>(read);
  T::template before<2>(step, read);
};

template <class T>
concept QFragmentLoadsSlot =
    FragmentLoadsSlot<T> && requires(example::Read read) { T::template hold<2>(read); };

template <class T>
concept MmaOrderSlot = requires(example::Mma mma) { T::template run<2, 4>(mma); };

}  // namespace fa::sm80

namespace fa::sm80::fragment_loads {

// Every fragment of the block is read before the first product.
struct Whole {
  template <int Steps, class Read>
  static __device__ void begin(Read read) {
#pragma unroll
    for (int step = 0; step < Steps; ++step) read(step);
  }

  template <int Steps, class Read>
  static __device__ void before(int, Read) {}
};

// The operand was read before the loop over key blocks and stays in registers.
struct Held {
  template <int Steps, class Read>
  static __device__ void hold(Read read) {
#pragma unroll
    for (int step = 0; step < Steps; ++step) read(step);
  }

  template <int Steps, class Read>
  static __device__ void begin(Read) {}

  template <int Steps, class Read>
  static __device__ void before(int, Read) {}
};

// Fragments are read `Tiles` steps at a time, just before the first product that needs them. Few
// registers are live, but the latency of ldmatrix is exposed.
template <int Tiles>
struct Interleaved {
  template <int Steps, class Read>
  static __device__ void hold(Read) {}

  template <int Steps, class Read>
  static __device__ void begin(Read) {}

  template <int Steps, class Read>
  static __device__ void before(int step, Read read) {
    if (step % Tiles == 0) {
#pragma unroll
      for (int t = step; t < step + Tiles && t < Steps; ++t) read(t);
    }
  }
};

// The next `Tiles` steps are read before the products of the current ones: ldmatrix overlaps with
// mma.
template <int Tiles>
struct DoubleBuffered {
  template <int Steps, class Read>
  static __device__ void hold(Read) {}

  template <int Steps, class Read>
  static __device__ void begin(Read read) {
#pragma unroll
    for (int t = 0; t < Tiles && t < Steps; ++t) read(t);
  }

  template <int Steps, class Read>
  static __device__ void before(int step, Read read) {
    if (step % Tiles == 0) {
#pragma unroll
      for (int t = step + Tiles; t < step + 2 * Tiles && t < Steps; ++t) read(t);
    }
  }
};

}  // namespace fa::sm80::fragment_loads

namespace fa::sm80::mma_order {

// Products of one step row by row: each row fragment is multiplied with all columns.
struct RowMajor {
  template <int RowFragments, int ColFragments, class Mma>
  static __device__ void run(Mma mma) {
#pragma unroll
    for (int i = 0; i < RowFragments; ++i)
#pragma unroll
      for (int j = 0; j < ColFragments; ++j) mma(i, j);
  }
};

// Products of one step column by column, with rows alternately up and down: consecutive products share
// an operand, which stays in the operand cache.
struct Serpentine {
  template <int RowFragments, int ColFragments, class Mma>
  static __device__ void run(Mma mma) {
#pragma unroll
    for (int j = 0; j < ColFragments; ++j)
#pragma unroll
      for (int t = 0; t < RowFragments; ++t) mma(j % 2 ? RowFragments - 1 - t : t, j);
  }
};

}  // namespace fa::sm80::mma_order
