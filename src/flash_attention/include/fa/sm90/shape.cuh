// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory: panels of 64 (32) columns, one swizzled row of 128 (64) bytes after the other,
// for TMA and wgmma without conflicts. No product reads columns beyond d_head.
#pragma once
#include <fa/core.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>

namespace fa::sm90 {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroupWarps = kWarpgroupSize / kWarpSize;
inline constexpr int kWarpgroupRows = 64;  // of one wgmma
inline constexpr int kWarpRows = 16;
inline constexpr int kGroupRows = 8;  // after which the swizzle repeats

// The registers that a thread of each consumer gives to a producer of more than one thread, whose lanes keep
// the lengths of sequences or the numbers of pages. A thread's registers are a multiple of eight. Lanes that
// copy rows take more from a consumer that is alone and has them.
__device__ constexpr int given_registers(int consumers, bool copies = false) {
  return copies && consumers == 1 ? 32 : (16 / consumers + 7) / 8 * 8;
}

// The columns of panels that take the least shared memory.
template <int DHead>
inline constexpr int kTightColumns = DHead % 64 > 32 || DHead % 64 == 0 ? 64 : 32;

template <int DHead, int Columns = kTightColumns<DHead>>
struct Panels {
  static constexpr int kColumns = Columns;
  static constexpr int kCount = (DHead + kColumns - 1) / kColumns;
  static constexpr int kRowBytes = kColumns * kElementBytes;  // the swizzle span, too
  static constexpr int kSteps = kColumns / 16;

  // Byte offset of a 16-byte chunk: the chunk index is XORed with the row's position in the pattern,
  // which repeats every 1024 (512) bytes.
  static __device__ u32 place(int row, int chunk) {
    const u32 offset = row * kRowBytes + chunk * kChunkBytes;
    return offset ^ (offset >> 7 & (kRowBytes / kChunkBytes - 1)) << 4;
  }
};

// A tile by its address. Products take it as an operand: a descriptor of its first 16-deep step, to
// which the distances of the other steps are added.
//
// The panels follow each other, or, if the tile is `Grouped`, the groups of eight rows do, each with all its
// panels: whole rows are then contiguous enough for one box of TMA.
template <int DHead, int Rows, int Columns = kTightColumns<DHead>, bool Grouped = false>
struct SharedTile : Panels<DHead, Columns> {
  using Base = Panels<DHead, Columns>;
  static constexpr int kRows = Rows;
  static constexpr int kBytes = Base::kCount * Rows * Base::kRowBytes;
  static constexpr int kPanelBytes =
      (Grouped ? kGroupRows : Rows) * Base::kRowBytes;  // to the next
  static constexpr int kGroupBytes = (Grouped ? Base::kCount : 1) * kGroupRows * Base::kRowBytes;

  // Q or K: contiguous along the contraction, which is d.
  struct RowOperand {
    u64 descriptor;

    // The 16 columns of step d.
    __device__ u64 step(int d) const {
      return descriptor + ((d / Base::kSteps * kPanelBytes + d % Base::kSteps * 32) >> 4);
    }
    // The same operand of the n-th tile after this one.
    __device__ RowOperand after(int n) const { return {descriptor + n * (kBytes >> 4)}; }
    // The operand of the first lane.
    __device__ RowOperand uniform() const {
      return {descriptor >> 32 << 32 | __shfl_sync(~0u, static_cast<u32>(descriptor), 0)};
    }
  };

  // V: contiguous along d, which is the width of the product; panels are `leading` apart.
  struct ColumnOperand {
    u64 descriptor;

    // The 16 rows of step n.
    __device__ u64 step(int n) const { return descriptor + (n * 2 * kGroupBytes >> 4); }
    __device__ ColumnOperand after(int n) const { return {descriptor + n * (kBytes >> 4)}; }
  };

  u32 address;

  __device__ explicit SharedTile(u32 in_shared_memory) : address(in_shared_memory) {}

  // The n-th of consecutive tiles, of which this is the first.
  __device__ SharedTile after(int n) const { return SharedTile(address + n * kBytes); }
  __device__ u32 panel(int p) const { return address + p * kPanelBytes; }
  __device__ u32 group(int n) const { return address + n * kGroupBytes; }
  __device__ u32 chunk(int row, int chunk) const {
    constexpr int kChunks = Base::kColumns / kChunkElements;
    const u32 first = Grouped ? group(row / kGroupRows) : address;
    return first + chunk / kChunks * kPanelBytes +
           Base::place(Grouped ? row % kGroupRows : row, chunk % kChunks);
  }

  __device__ RowOperand row_operand() const {
    return {ptx::wgmma_descriptor(address, 16, kGroupBytes, Base::kRowBytes)};
  }
  __device__ ColumnOperand column_operand() const {
    return {ptx::wgmma_descriptor(address, kPanelBytes, kGroupBytes, Base::kRowBytes)};
  }
};

// A tile of elements of 8 bits. In bytes it is one of 16 bits with half the columns, and a step of 32 columns
// is one of 16.
template <int DHead, int Rows>
struct ByteTile : SharedTile<DHead / 2, Rows> {
  using Base = SharedTile<DHead / 2, Rows>;
  using Base::Base;
  static constexpr int kColumns = 2 * Base::kColumns;

  // The n-th eight elements of a row.
  __device__ u32 eight(int row, int n) const { return Base::chunk(row, n / 2) + n % 2 * 8; }
};

// The rows of a warpgroup that are used: whole queries of `group` heads, or an equal share of one query.
__device__ constexpr int used_rows(int group) {
  if (group <= kWarpgroupRows) return kWarpgroupRows / group * group;
  int shares = (group + kWarpgroupRows - 1) / kWarpgroupRows;
  while (group % shares) ++shares;
  return group / shares;
}

// Whether Q K^T is a product of elements of 8 bits, and P V one of 16.
template <class Config>
__device__ constexpr bool scores_have_8_bits() {
  if constexpr (requires { Config::kScores8Bit; }) return Config::kScores8Bit > 0;
  return false;
}
template <class Config>
inline constexpr bool kScores8Bit = scores_have_8_bits<Config>();

// The warps of the producer's warpgroup that convert keys of 8 bits: those that do not load.
template <class Config>
inline constexpr int kConverters =
    Config::kConvertingWarps ? kWarpgroupWarps - Config::Pages::template kWarps<Config> : 0;

// Few rows of a decoding tile are used, and the other warps of its only consumer leave their P at 0.
template <class Config>
inline constexpr bool kLeavesRows = Config::kConsumers == 1 && Config::Splits::kSplitKv;

// Whether nobody sees S of some blocks.
template <class Config>
inline constexpr bool kStale = Config::Rescale::kStale;

// The tiles that products read: of Q and K, from which scores are computed, and of V.
template <class Config, bool Scores8Bit = kScores8Bit<Config>>
struct OperandTiles {
  using QTile = SharedTile<Config::kDHead, kWarpgroupRows, Config::kPanelColumns>;
  using VTile =
      SharedTile<Config::kDHead, Config::kBC, Config::kPanelColumns, Config::Pages::kGrouped>;
  using KTile = VTile;
};
template <class Config>
struct OperandTiles<Config, true> {
  using QTile = ByteTile<Config::kDHead, kWarpgroupRows>;
  using VTile = SharedTile<Config::kDHead, Config::kBC, Config::kPanelColumns>;
  using KTile = ByteTile<Config::kDHead, Config::kBC>;
};

template <class Config>
struct Shape : OperandTiles<Config> {
  using typename OperandTiles<Config>::QTile;  // of one warpgroup; O's, too
  static constexpr int kGroup = Config::Rows::kGroup;
  static constexpr int kRows = used_rows(kGroup);  // of a warpgroup
  static constexpr int kBR = Config::kConsumers * kRows;
  static constexpr int kQLoadBytes = kRows * QTile::kCount * QTile::kRowBytes;

  // The operand in uniform registers, from which products read it. The compiler puts it there by itself
  // where other registers are not scarce.
  static __device__ typename QTile::RowOperand uniform(typename QTile::RowOperand q) {
    return Config::kDHead >= 256 || Config::kConsumers > 2 ? q.uniform() : q;
  }
};

// The tensor maps of q, k, v and o; kernels that copy by threads have none.
struct TensorMaps {
  const TensorMap &q, &k, &v, &o;
};

// With that of a captured tensor, which is loaded beside k.
struct BiasedMaps : TensorMaps {
  const TensorMap& bias;
};

struct NoMaps {};

// The named barriers of a CTA and their participants; 0 is __syncthreads.
inline constexpr int kMostConsumers = 3;

enum class NamedBarrier : int {
  kPingPong = 1,                            // one for each consumer: it may issue its products
  kWarpgroup = kPingPong + kMostConsumers,  // one for each consumer: its four warps
  kConsumers = kWarpgroup + kMostConsumers  // all of them
};
static_assert(static_cast<int>(NamedBarrier::kConsumers) < 16);

// The barrier of `warpgroup`, of a kind that each consumer has one of.
__device__ constexpr int id_of(NamedBarrier first, int warpgroup) {
  return static_cast<int>(first) + warpgroup;
}

__device__ inline int warp_in_group() { return warp_id() % kWarpgroupWarps; }

// The value is the same in all lanes. The shuffle tells the compiler, which keeps loops convergent.
__device__ inline bool uniform(bool condition) { return __any_sync(~0u, condition); }

// Waits for all threads of the warpgroup.
__device__ inline void sync_warpgroup(int warpgroup) {
  ptx::named_barrier_sync(id_of(NamedBarrier::kWarpgroup, warpgroup), kWarpgroupSize);
}

// Waits for all consumers.
template <class Config>
__device__ void sync_consumers() {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kConsumers),
                          Config::kConsumers * kWarpgroupSize);
}

// Dynamic shared memory starts at a known address on sm_90, if a kernel has no other shared memory. Addresses
// are then constants: they take no registers, and those of stages stay in uniform registers.
inline constexpr u32 kSmemStart = 1024;

__device__ inline void check_smem_start(const void* smem) {
  if (ptx::smem_address(smem) != kSmemStart) __trap();
}

// A stage of a ring buffer, and the parity of the current phase of its barriers.
template <int Stages>
struct Ring {
  int stage = 0;
  u32 parity = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fa::sm90
