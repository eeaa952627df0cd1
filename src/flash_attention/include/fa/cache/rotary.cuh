// SPDX-License-Identifier: Apache-2.0
// The slots Columns and Rotary: how a row of a KV cache is copied, and how it is rotated.
#pragma once
#include <fa/cache_args.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::cache::columns {

// Rows of whole, aligned chunks.
struct Vectors {
  static __device__ ptx::Chunk load(const char* row, int chunk, int /*columns*/) {
    return ptx::ld_global_16(row + chunk * kChunkBytes);
  }
  static __device__ void store(char* row, int chunk, int /*columns*/, ptx::Chunk value) {
    ptx::st_global_16(row + chunk * kChunkBytes, value);
  }
};

// Rows of any number of columns at any address, element by element.
struct Elements {
  static __device__ ptx::Chunk load(const char* row, int chunk, int columns) {
    const auto* const from = reinterpret_cast<const unsigned short*>(row);
    const auto pair = [&](int i) {
      const int column = chunk * kChunkElements + 2 * i;
      const u32 low = column < columns ? from[column] : 0;
      return column + 1 < columns ? low | from[column + 1] << 16 : low;
    };
    return {pair(0), pair(1), pair(2), pair(3)};
  }
  static __device__ void store(char* row, int chunk, int columns, ptx::Chunk value) {
    auto* const to = reinterpret_cast<unsigned short*>(row);
    const u32 pairs[] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const int column = chunk * kChunkElements + i;
      if (column < columns) to[column] = pairs[i / 2] >> i % 2 * 16;
    }
  }
};

}  // namespace fa::cache::columns

namespace fa::cache {

// The rotation of a pair of columns by the angle of a position. Products and sums are rounded one by one,
// as torch rounds them.
struct Rotation {
  float cos, sin;

  __device__ float first(float x, float y) const {
    return __fsub_rn(__fmul_rn(x, cos), __fmul_rn(y, sin));
  }
  __device__ float second(float x, float y) const {
    return __fadd_rn(__fmul_rn(x, sin), __fmul_rn(y, cos));
  }
};

// The rotation of the pair with this index.
template <class DType>
__device__ Rotation rotation_of(const CacheKernelArgs& args, int position, int pair) {
  const auto value = [&](const void* table, i64 stride) {
    return DType::low(static_cast<const unsigned short*>(table)[position * stride + pair]);
  };
  return {value(args.cos, args.cos_stride), value(args.sin, args.sin_stride)};
}

}  // namespace fa::cache

namespace fa::cache::rotary {

// No rotary embedding.
struct None {
  static constexpr bool kRotates = false;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int /*position*/) {
    return Config::Columns::load(row, chunk, args.d_qk);
  }
};

// Columns i and i + rotary_dim / 2 are rotated together, as in GPT-NeoX. rotary_dim / 2 is a number of chunks.
struct Halves {
  static constexpr bool kRotates = true;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int position) {
    using DType = typename Config::DType;
    const int half = args.rotary_dim / 2 / kChunkElements;
    const ptx::Chunk mine = Config::Columns::load(row, chunk, args.d_qk);
    if (chunk >= 2 * half) return mine;
    const bool first = chunk < half;
    const ptx::Chunk other =
        Config::Columns::load(row, first ? chunk + half : chunk - half, args.d_qk);
    const auto turned = [&](float own, float far, int i) {
      const Rotation rotation =
          rotation_of<DType>(args, position, chunk % half * kChunkElements + i);
      return first ? rotation.first(own, far) : rotation.second(far, own);
    };
    const auto pair = [&](u32 own, u32 far, int i) {
      return DType::pack(turned(DType::low(own), DType::low(far), 2 * i),
                         turned(DType::high(own), DType::high(far), 2 * i + 1));
    };
    return {pair(mine.x, other.x, 0), pair(mine.y, other.y, 1), pair(mine.z, other.z, 2),
            pair(mine.w, other.w, 3)};
  }
};

// Columns 2 i and 2 i + 1 are rotated together, as in GPT-J.
struct Interleaved {
  static constexpr bool kRotates = true;

  template <class Config>
  static __device__ ptx::Chunk rotated(const char* row, int chunk, const CacheKernelArgs& args,
                                       int position) {
    using DType = typename Config::DType;
    const ptx::Chunk c = Config::Columns::load(row, chunk, args.d_qk);
    if (chunk * kChunkElements >= args.rotary_dim) return c;
    const auto turned = [&](u32 pair, int i) {
      const Rotation rotation = rotation_of<DType>(args, position, chunk * kChunkElements / 2 + i);
      const float x = DType::low(pair), y = DType::high(pair);
      return DType::pack(rotation.first(x, y), rotation.second(x, y));
    };
    return {turned(c.x, 0), turned(c.y, 1), turned(c.z, 2), turned(c.w, 3)};
  }
};

}  // namespace fa::cache::rotary
