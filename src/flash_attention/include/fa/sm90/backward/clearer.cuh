// SPDX-License-Identifier: Apache-2.0
// The clearer, where sequences differ in length: a warp that clears the rows of a buffer after the end of the
// sequence. They belong to another sequence, or to nobody. Products read them with factors of zero, and 0
// times NaN is NaN. The copies of such a buffer complete a barrier of the clearer, which then says that the
// buffer is full, so that the warpgroups that compute need not look at the ends of sequences.
#pragma once
#include <fa/sm90/backward/shared_memory.cuh>
#include <fa/sm90/backward/staged_rows.cuh>

namespace fa::sm90::backward {

template <class Config>
class Clearer {
  using Smem = SharedMemory<Config>;

 public:
  __device__ void run() {
    int steps, block;
    while (take_tile<Config>(tile_, steps, block)) {
      const Mailbox mail = Smem::mail(tile_);
      const int queries = mail.read(Word::kQLen);
      if (steps == 0) clear_keys(mail);
      for (int step = 0; step < steps; ++step) {
        clear_queries(queries - block * Config::kBR);
        if (step == 0) clear_keys(mail);  // in the order of the loads
        ring_.advance();
        BlockWalk<Config>::next(block, mail);
      }
      while (ring_.stage > 0) ring_.advance();  // the next tile starts at stage 0
      __syncwarp();                             // all lanes have read the mailbox
      Smem::mail_pipeline().release(tile_.mailbox());
      tile_.advance();
    }
  }

 private:
  __device__ void clear_queries(int rows) {
    if (rows >= Config::kBR) return;
    const int stage = ring_.stage;
    clear(Smem::q(stage), rows, Smem::kQLanded + stage, Smem::q_pipeline().full(stage));
    clear(Smem::d_o(stage), rows, Smem::kDOLanded + stage, Smem::d_o_pipeline().full(stage));
  }
  __device__ void clear_keys(Mailbox mail) {
    const int rows = mail.read(Word::kKLen) - mail.read(Word::kKeyFirst);
    if (rows >= Config::kBC) return;
    clear(Smem::k(), rows, Smem::kKLanded, Smem::key_pipeline().full(0, Smem::kKPart));
    clear(Smem::v(), rows, Smem::kVLanded, Smem::key_pipeline().full(0, Smem::kVPart));
  }

  // Clears the rows of a tile after the first `rows` ones, which its copy has written.
  template <class Tile>
  __device__ void clear(Tile tile, int rows, int landed, ptx::Mbarrier full) {
    Smem::landed().wait(landed, parities_ >> landed & 1);  // the copy has arrived
    parities_ ^= 1u << landed;
    clear_rows(tile, rows, Tile::kRows, lane_id(), kWarpSize);
    __syncwarp();  // all lanes have stored their zeros
    if (lane_id() == 0) ptx::mbarrier_arrive(full);
  }

  Ring<Config::kStages> ring_;
  TileCount tile_;
  u32 parities_ = 0;  // of the barriers that the copies complete
};

}  // namespace fa::sm90::backward
