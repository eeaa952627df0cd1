// SPDX-License-Identifier: Apache-2.0
// The other two of the warpgroups that split the products of a tile: dV += P^T dO, and dK += dS^T Q. Both
// operands are in shared memory, so that registers hold 64 rows of a gradient and little else. Each
// loads what its products read.
#pragma once
#include <fa/sm90/backward/split_memory.cuh>
#include <fa/sm90/backward/staged_rows.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// A gradient that nobody wants is neither computed nor stored. What the others read is loaded all the same.
template <class Config, bool Wanted>
class SplitGradient {
 protected:
  using Smem = SplitMemory<Config>;
  using Tile64 = typename Smem::Tile64;

  // All threads wait for an empty buffer, so that the warpgroup stays together; one loads.
  static __device__ bool leads() { return threadIdx.x % kWarpgroupSize == 0; }

  // The gradient += P^T dO, or dS^T Q.
  __device__ void accumulate(Panel panel, Tile64 queries) {
    if constexpr (!Wanted) return;
    using Wgmma = ptx::WgmmaBothShared<typename Config::DType, Config::kDHead, false, true>;
    const auto a = panel.row_operand();
    const auto b = queries.column_operand();
    ptx::wgmma_fence();  // wgmma may now touch these registers
#pragma unroll
    for (int n = 0; n < kPanelRows / 16; ++n) Wgmma::run(gradient_, a.step(n), b.step(n));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();  // both were read
  }

  __device__ void store(float scale, Tile64 staged, float* sums, const TensorMap& map,
                        const Columns& to) const {
    if constexpr (!Wanted) return;
    const Mailbox mail = Smem::mail();
    if constexpr (Config::kSplitsHeads > 0) return store_sum(gradient_, sums, mail, 0);
    const int first = warp_in_group() * kWarpRows;
    const int row = mail.read(Word::kKeyFirst) + first;
    stage_rows<typename Config::DType>(gradient_, scale, staged, first);
    store_staged<Config::Lengths::kPerBatch>(
        staged, first, mail.read(Word::kKLen) - row, map,
        {to, mail.read(Word::kKFirst) + row, mail.read(Word::kKvHead), mail.read(Word::kKBatch)});
    if (lane_id() == 0) ptx::tma_wait();  // shared memory outlives the store that reads it
  }

  Accumulator<kWarpRows, Config::kDHead> gradient_;
  const TensorMaps& maps_;
  const BackwardKernelArgs& args_;
  const attn::Sequence& sequence_;
  const Tile tile_;
  QueryWalk<Config> walk_;

 public:
  __device__ SplitGradient(const TensorMaps& maps, const BackwardKernelArgs& args,
                           const attn::Sequence& sequence, Tile tile)
      : maps_(maps),
        args_(args),
        sequence_(sequence),
        tile_(tile),
        walk_(args, sequence, tile.batch) {}
};

template <class Config>
class ValueGradient : SplitGradient<Config, Config::kWantsDv> {
  using Base = SplitGradient<Config, Config::kWantsDv>;
  using Base::args_, Base::maps_, Base::sequence_, Base::tile_, Base::walk_;
  using typename Base::Smem;

 public:
  using Base::Base;

  __device__ void run() {
    int steps = Smem::mail().read(Word::kSteps);
    const bool any = steps > 0;
    this->gradient_.zero();
    if (any) {
      load();
      load_values();
      load();
    }
    Ring<Smem::kStages> ring, last;
#pragma unroll 1
    for (; steps > 0; --steps) {
      Smem::d_o_pipeline().wait(ring);                               // dO has arrived
      Smem::p_pipeline().wait(ring);                                 // P is written
      this->accumulate(Smem::p(ring.stage), Smem::d_o(ring.stage));  // dV += P^T dO
      Smem::p_pipeline().release(ring);
      Smem::d_o_pipeline().release(ring);
      load();
      last = ring;
      ring.advance();
    }
    if (any) Smem::d_o_pipeline().wait_empty(last);  // all have read dO
    this->store(Config::Dropout::scale(args_), Smem::d_o(last.stage), args_.dv_sum, maps_.dv,
                {args_.dv, args_.dv_stride, args_.d_v});
  }

 private:
  __device__ void load_values() const {
    if (!Base::leads()) return;
    const ptx::Mbarrier full = Smem::v_pipeline().full(0);
    ptx::mbarrier_arrive_expect(full, Smem::Tile64::kBytes);
    QueryWalk<Config>::load_rows(Smem::v(), maps_.v, full, tile_.kv_head,
                                 sequence_.k_first + tile_.key_first, sequence_.k_batch);
  }
  // The next dO and its deltas.
  __device__ void load() {
    if (!walk_.has_block()) return;
    Smem::d_o_pipeline().acquire(loads_);  // all have read it
    if (Base::leads()) {
      const ptx::Mbarrier full = Smem::d_o_pipeline().full(loads_.stage);
      ptx::mbarrier_arrive_expect(full, Smem::Tile64::kBytes + Smem::kStatBytes);
      walk_.load(Smem::d_o(loads_.stage), maps_.d_o, full);
      ptx::bulk_load(Smem::delta(deltas_.stage), args_.delta + walk_.stats(), Smem::kStatBytes,
                     full);
    }
    __syncwarp();
    walk_.advance();
    loads_.advance();
    deltas_.advance();
  }

  Ring<Smem::kStages> loads_;
  Ring<Smem::kDeltas> deltas_;
};

template <class Config>
class KeyGradient : SplitGradient<Config, Config::kWantsDk> {
  using Base = SplitGradient<Config, Config::kWantsDk>;
  using Base::args_, Base::maps_, Base::sequence_, Base::tile_, Base::walk_;
  using typename Base::Smem;
  static constexpr bool kStoresDs = Config::QueryGradient::kStoresDs;

 public:
  using Base::Base;

  __device__ void run() {
    int steps = Smem::mail().read(Word::kSteps);
    const bool any = steps > 0;
    this->gradient_.zero();
    if (any) {
      load_keys();
#pragma unroll 1
      for (int i = 0; i < Smem::kQStages; ++i) load();  // the last one in place of K
    }
    int block = Smem::mail().read(Word::kFirstBlock);
    int head = Smem::mail().read(Word::kPartHead);
    Ring<Smem::kQStages> q, last;
    Ring<Smem::kStages> ds;
    q.advance();  // after K
#pragma unroll 1
    for (; steps > 0; --steps) {
      Smem::ds_pipeline().wait(ds);  // dS is written
      if (kStoresDs) store_ds(ds.stage, head, block);
      this->accumulate(Smem::ds(ds.stage), Smem::q(q.stage));  // dK += dS^T Q
      if (steps > 1) Smem::q_pipeline().release(q);            // the last one takes dK
      load();
      if (kStoresDs && Base::leads()) ptx::bulk_wait_read<0>();  // dS has left
      __syncwarp();
      Smem::ds_pipeline().release(ds);
      last = q;
      q.advance();
      if (++block == Smem::mail().read(Word::kEndBlock)) {
        block = Smem::mail().read(Word::kFirstBlock);
        ++head;
      }
      if (steps == 1) Smem::ds_pipeline().wait_empty(ds);  // all have read Q
      ds.advance();
    }
    this->store(args_.softmax_scale, Smem::q(last.stage), args_.dk_sum, maps_.dk,
                {args_.dk, args_.dk_stride, args_.d_qk});
  }

 private:
  __device__ void load_keys() {
    loads_.advance();
    if (!Base::leads()) return;
    const ptx::Mbarrier full = Smem::q_pipeline().full(0);
    ptx::mbarrier_arrive_expect(full, Smem::Tile64::kBytes);
    QueryWalk<Config>::load_rows(Smem::q(0), maps_.k, full, tile_.kv_head,
                                 sequence_.k_first + tile_.key_first, sequence_.k_batch);
  }
  // The next Q and its log-sum-exps.
  __device__ void load() {
    if (!walk_.has_block()) return;
    Smem::q_pipeline().acquire(loads_);  // all have read it
    if (Base::leads()) {
      const ptx::Mbarrier full = Smem::q_pipeline().full(loads_.stage);
      ptx::mbarrier_arrive_expect(full, Smem::Tile64::kBytes + Smem::kStatBytes);
      walk_.load(Smem::q(loads_.stage), maps_.q, full);
      ptx::bulk_load(Smem::lse(loads_.stage), args_.lse_log2 + walk_.stats(), Smem::kStatBytes,
                     full);
    }
    __syncwarp();
    walk_.advance();
    loads_.advance();
  }
  __device__ void store_ds(int stage, int head, int block) const {
    if (!Base::leads()) return;
    const int key = Smem::mail().read_alone(Word::kKeyFirst);
    ptx::bulk_store(workspace_panel(args_, head, key, block * Config::kBR), Smem::ds(stage).address,
                    Panel::kBytes);
    ptx::tma_commit();
  }

  Ring<Smem::kQStages> loads_;
};

}  // namespace fa::sm90::backward
