// SPDX-License-Identifier: Apache-2.0
// The writer of dq_sum: one thread that serialises the additions of tiles to dQ with a semaphore per block of
// queries. The warpgroup of dQ stages its share of a block in parts, and the writer stores or adds them. For
// the last share of a block the writer loads the sum of the others into the parts, and the warpgroup stores dQ.
//
// There is no deadlock: a tile waits only for tiles with smaller keys. Those come before it in the tile order,
// so that a CTA has taken them from the counter, and they are running or done.
#pragma once
#include <fa/attn/mask.cuh>
#include <fa/backward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/backward/query_product.cuh>
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/work.cuh>

namespace fa::sm90::backward {

// A tile's share of dQ of a block of queries. Tiles add their shares in the order of their keys: the
// first one stores it, and the last one adds all others to its own and stores dQ.
struct Share {
  int rank;  // shares that are added before it
  bool last;

  __device__ bool first() const { return rank == 0; }

  // As a word of the mailbox.
  __device__ int bits() const { return 2 * first() + last; }
  static __device__ bool is_first(int bits) { return bits & 2; }
  static __device__ bool is_last(int bits) { return bits & 1; }
};

// The share of the tile in the mailbox, whose tile visits the block.
template <class Config>
__device__ Share share_of(Mailbox mail, const BackwardKernelArgs& args, int block) {
  attn::Sequence sequence = {};
  sequence.q_len = mail.read_alone(Word::kQLen);
  sequence.k_len = mail.read_alone(Word::kKLen);
  const attn::KeyRange<typename Config::Mask, Config::kBC> tiles(
      typename Config::Mask(args), block * Config::kBR, Config::kBR, sequence);
  const int tile = mail.read_alone(Word::kKeyFirst) / Config::kBC;
  return {tile - tiles.first_block(), tile + 1 == tiles.end_block()};
}

template <class Config>
class SumWriter {
  using Smem = SharedMemory<Config>;
  using Math = QueryProduct<Config>;

 public:
  __device__ explicit SumWriter(const BackwardKernelArgs& args) : args_(args) {}

  __device__ void run() {
    ptx::wait_for_grid();  // the semaphores are cleared
    while (take_tile()) {
      if (steps_ > 0) begin_block();
      while (steps_ > 0) {
        acquire_semaphore();
        if (share_.last)
          load_sum();
        else
          collect();
      }
      ptx::mbarrier_arrive(Smem::mail_pipeline().empty(tile_.mailbox()));
      tile_.advance();
    }
  }

 private:
  // Releases all parts, which nothing reads or writes, for the share of the current block.
  __device__ void begin_block() {
    share_ = share_of<Config>(Smem::mail(tile_), args_, block_);
#pragma unroll
    for (int part = 0; part < Math::kPasses; ++part) release(part);
    poll_semaphore();
  }

  // Releases a part before the semaphore is acquired. The first share and those in the middle need nothing
  // from the tiles before; the last one needs their sum.
  __device__ void release(int part) const {
    if (share_.last && !share_.first()) return;
    if (part == 0) Smem::mail(tile_).write(Word::kShare, share_.bits());
    ptx::mbarrier_arrive(Smem::dq_pipeline().empty(part));
  }

  // The first poll takes place while the share of the block before is being added.
  __device__ void poll_semaphore() {
    acquired_ = share_.first() || ptx::ld_acquire(semaphore()) == share_.rank;
  }

  __device__ void acquire_semaphore() const {
    if (!acquired_) ptx::wait_for_count(semaphore(), share_.rank);
    if (!share_.first()) ptx::fence_proxy_async_global();  // copies see the shares before
  }

  __device__ void load_sum() {
    if (!share_.first()) {
      Smem::mail(tile_).write(Word::kShare, share_.bits());
#pragma unroll
      for (int part = 0; part < Math::kPasses; ++part) {
        const ptx::Mbarrier empty = Smem::dq_pipeline().empty(part);
        ptx::mbarrier_arrive_expect(empty, Math::kPassBytes);
        ptx::bulk_load(staged(part), sum(part), Math::kPassBytes, empty);
      }
    }
#pragma unroll
    for (int part = 0; part < Math::kPasses; ++part)
      Smem::dq_pipeline().wait(part, parity_);  // dQ has left the part
    next_block();
    if (steps_ > 0) begin_block();
  }

  __device__ void collect() {
#pragma unroll
    for (int part = 0; part < Math::kPasses; ++part) {
      Smem::dq_pipeline().wait(part, parity_);  // the share is staged
      if (share_.first())
        ptx::bulk_store(sum(part), staged(part), Math::kPassBytes);
      else
        ptx::bulk_add_f32(sum(part), staged(part), Math::kPassBytes);
      ptx::tma_commit();
    }
    int* const done = semaphore();
    next_block();
    if (steps_ > 0) release_after_read();
    ptx::tma_wait();                  // the share is added
    ptx::fence_proxy_async_global();  // before the count
    ptx::count_up(done);
  }

  // Releases each part for the current block as soon as the copy has read it.
  __device__ void release_after_read() {
    share_ = share_of<Config>(Smem::mail(tile_), args_, block_);
    release_after_read<0>();
    poll_semaphore();
  }
  template <int Part>
  __device__ void release_after_read() const {
    if constexpr (Part < Math::kPasses) {
      ptx::bulk_wait_read<Math::kPasses - 1 - Part>();
      release(Part);
      release_after_read<Part + 1>();
    }
  }

  __device__ bool take_tile() {
    Smem::mail_pipeline().wait(tile_);  // it is there
    const Mailbox mail = Smem::mail(tile_);
    if (mail.read_alone(Word::kKeyFirst) == kNoMoreTiles) return false;
    steps_ = mail.read_alone(Word::kSteps);
    block_ = mail.read_alone(Word::kEndBlock) - 1;
    row_ = static_cast<i64>(mail.read_alone(Word::kHead)) * args_.stat_rows +
           mail.read_alone(Word::kStatFirst);
    return true;
  }
  __device__ void next_block() {
    parity_ ^= 1;
    --steps_;
    if (BlockWalk<Config>::next(block_, Smem::mail(tile_))) row_ += args_.stat_rows;
  }

  __device__ i64 block_row() const { return row_ + block_ * Config::kBR; }
  __device__ int* semaphore() const {
    return args_.dq_semaphore + block_row() / attn::kSemaphoreRows;
  }
  __device__ float* sum(int part) const {
    return args_.dq_sum + block_row() * Config::kDHead + part * Math::kPassFloats;
  }
  static __device__ u32 staged(int part) { return Smem::kDq + part * Math::kPassBytes; }

  const BackwardKernelArgs& args_;
  i64 row_;  // of the sequence of the current head, in dq_sum
  u32 parity_ = 0;
  TileCount tile_;
  int steps_, block_;
  Share share_;    // in the current block
  bool acquired_;  // its semaphore, by the first poll
};

}  // namespace fa::sm90::backward
