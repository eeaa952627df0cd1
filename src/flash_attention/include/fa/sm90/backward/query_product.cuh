// SPDX-License-Identifier: Apache-2.0
// dQ = dS K of a block, in passes of 64 queries and some of the columns. dS goes through shared memory: dS^T of a
// key warpgroup is written transposed. The sum dq_sum has the order of the accumulator registers: a
// pass is so many adjacent floats, and a thread's four of a fragment are adjacent too.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/shared_memory.cuh>

namespace fa::sm90::backward {

template <class Config>
struct QueryProduct {
  using KeyTile = typename Shape<Config>::KeyTile;
  using ScoreTile = typename Shape<Config>::ScoreTile;
  static constexpr int kColumns = Config::kPassColumns;  // whole panels
  static constexpr int kColumnPasses = Config::kDHead / kColumns;
  static constexpr int kPasses = Shape<Config>::kDqPasses;
  static constexpr int kPassFloats = kWarpgroupRows * kColumns;
  static constexpr int kPassBytes = kPassFloats * static_cast<int>(sizeof(float));
  static constexpr int kFragmentFloats = 4 * kWarpgroupSize;
  using Sum = Accumulator<kWarpRows, kColumns>;

  // A warp writes dS^T of its 16 keys into the block's tile.
  template <int Warpgroup, class Pairs>
  static __device__ void write(const Pairs& ds, ScoreTile tile) {
    const int query = lane_id() / 16 * 8 + lane_id() % 8;
    const int chunk =
        Warpgroup * kWarpgroupRows / kChunkElements + warp_in_group() * 2 + lane_id() / 8 % 2;
    const u32 to = tile.chunk(query, chunk);
#pragma unroll
    for (int n = 0; n < Config::kBR / 16; ++n)
      ptx::stmatrix_x4_trans(to + n * 16 * ScoreTile::kRowBytes, ds.step[n]);
    ptx::fence_proxy_async();  // the products see what this lane wrote
  }

  // One pass of dQ = dS K, asynchronously.
  static __device__ void issue(Sum& sum, ScoreTile ds, KeyTile keys, int pass) {
    using Wgmma = ptx::WgmmaBothShared<typename Config::DType, kColumns, false, true>;
    const auto a = rows_of(ds, pass / kColumnPasses).row_operand();
    constexpr int kPanels = kColumns / KeyTile::kColumns;
    const auto b = KeyTile(keys.panel(pass % kColumnPasses * kPanels)).column_operand();
    ptx::wgmma_fence();  // wgmma may now touch these registers
    Wgmma::start(sum, a.step(0), b.step(0));
#pragma unroll
    for (int n = 1; n < Config::kBC / 16; ++n) Wgmma::run(sum, a.step(n), b.step(n));
    ptx::wgmma_commit();
  }

  // Stages a pass as it lies in dq_sum.
  static __device__ void stage(const Sum& sum, u32 staged) {
    const u32 to = staged + threadIdx.x % kWarpgroupSize * 16;
#pragma unroll
    for (int j = 0; j < Sum::kColFragments; ++j)
      ptx::st_shared_floats(to + j * kFragmentFloats * static_cast<int>(sizeof(float)),
                            sum.v[0][j]);
    ptx::fence_proxy_async();  // the copy engine sees what this thread wrote
  }

  // Adds what is staged, in the same order.
  static __device__ void add_staged(Sum& sum, u32 staged) {
    const u32 from = staged + threadIdx.x % kWarpgroupSize * 16;
#pragma unroll
    for (int j = 0; j < Sum::kColFragments; ++j) {
      float x[4];
      ptx::ld_shared_floats(x, from + j * kFragmentFloats * static_cast<int>(sizeof(float)));
#pragma unroll
      for (int e = 0; e < 4; ++e) sum.v[0][j][e] += x[e];
    }
  }
};

// Where the sums of a tile's blocks are: the blocks of a head, then those of the next head that shares
// the keys.
template <class Config>
class SumPlace {
 public:
  __device__ explicit SumPlace(const BackwardKernelArgs& args) : args_(args) {}

  // The block `block` of the current head.
  __device__ float* block(int block) const {
    return head_ + static_cast<i64>(block) * Config::kBR * Config::kDHead;
  }
  __device__ void begin_tile(Mailbox mail) {
    const i64 head = mail.read(Word::kHead);
    head_ = args_.dq_sum + (head * args_.stat_rows + mail.read(Word::kStatFirst)) * Config::kDHead;
  }
  __device__ void next_head() { head_ += static_cast<i64>(args_.stat_rows) * Config::kDHead; }

 private:
  const BackwardKernelArgs& args_;
  float* head_;
};

// The slot BiasGradient: one thread of the warpgroup of dQ stores the tiles of dS, if they are the gradient of a
// captured tensor.
template <class T, class Config>
concept BiasGradientSlot = requires(typename T::template Of<Config>& of, const TensorMaps& maps,
                                    const BackwardKernelArgs& args, Mailbox mail) {
  { typename T::template Of<Config>(maps, args) };
  of.begin_tile(mail);
  of.next_head();
  of.store(mail, 0, 0);
  of.wait_read();
};

// The key side of a warpgroup that computes dQ by itself. The key warpgroups only write dS, and meet it
// through the mbarriers of the stages of dS.
template <class Config, int Warpgroup>
class DsBuffers {
  using Smem = SharedMemory<Config>;

 public:
  __device__ explicit DsBuffers(const BackwardKernelArgs&) {}
  __device__ void begin_tile(Mailbox) {}
  __device__ void next_head() {}

  template <class Pairs>
  __device__ void hand_over(const Pairs& ds, int /*block*/) {
    Smem::ds_pipeline().acquire(ds_);  // the dS before was read
    QueryProduct<Config>::template write<Warpgroup>(ds, Smem::ds(ds_.stage));
    __syncwarp();  // all lanes have written
    Smem::ds_pipeline().commit(ds_.stage);
    ds_.advance();
  }

 private:
  Ring<Config::kDsStages> ds_;
};

}  // namespace fa::sm90::backward

namespace fa::sm90::backward::bias_gradient {

// dS is nobody's gradient.
struct None {
  template <class Config>
  struct Of {
    __device__ Of(const TensorMaps&, const BackwardKernelArgs&) {}
    __device__ void begin_tile(Mailbox) {}
    __device__ void next_head() {}
    __device__ void store(Mailbox, int /*stage*/, int /*query*/) const {}
    __device__ void wait_read() const {}
  };
};

}  // namespace fa::sm90::backward::bias_gradient
