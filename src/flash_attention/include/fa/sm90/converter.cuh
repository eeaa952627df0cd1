// SPDX-License-Identifier: Apache-2.0
// The converter: warps of the producer's warpgroup that turn K and V of 8 bits into elements of 16 bits,
// from where they land to where the products read them. The numbers stay the same. Q of 8 bits, which is
// read once, comes straight from global memory.
#pragma once
#include <fa/ptx/e4m3.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/ptx/tma.cuh>
#include <fa/sm90/landing.cuh>
#include <fa/sm90/mailbox.cuh>
#include <fa/sm90/visited_blocks.cuh>

namespace fa::sm90 {

template <class Config>
class Converter {
  using Converted = SharedMemory<Config>;
  using Landing = LandingMemory<Config>;
  using FactorsOfRows = typename Config::Descale::Rows;
  static constexpr int kThreads = Config::kConvertingWarps * kWarpSize;

 public:
  // `thread` counts those that convert.
  __device__ Converter(const Landing& smem, const ForwardKernelArgs& args, int thread)
      : landing_(smem), converted_(smem), args_(args), thread_(thread) {}

  __device__ void run() {
    Tile tile;
    attn::Sequence sequence;
    u32 tile_parity = 0;
    for (; take_tile<Config>(landing_.mail(), args_, tile, sequence, tile_parity);
         tile_parity ^= 1) {
      if (Config::kConvertQueries) convert_queries(tile, sequence, tile_parity);
      const auto [first, end] = visited_blocks<Config>(tile, sequence, args_);
#pragma unroll 1
      for (int block = end - 1; block >= first; --block)
        convert_block(tile, block * Config::kBC, sequence.k_len);
    }
  }

 private:
  __device__ void convert_queries(const Tile& tile, const attn::Sequence& sequence, u32 parity) {
#pragma unroll 1
    for (int w = 0; w < Config::kConsumers; ++w) {
      ptx::mbarrier_wait(converted_.q_empty(w), parity ^ 1);  // the previous Q was read
      read_queries(converted_.q(w), tile, w, sequence);
      pass_on(converted_.q_full(w));
    }
  }

  // Rows without a query and columns that Q does not have are zero.
  __device__ void read_queries(typename Shape<Config>::QTile to, const Tile& tile, int warpgroup,
                               const attn::Sequence& sequence) const {
    using Rows = typename Config::Rows;
    constexpr int kRowChunks = Landing::KVTile::kRowBytes / kChunkBytes;
    const int first_row = tile.q_block * Shape<Config>::kBR + warpgroup * Shape<Config>::kRows;
#pragma unroll 1
    for (int i = thread_; i < Shape<Config>::kRows * kRowChunks; i += kThreads) {
      const int row = i / kRowChunks, chunk = i % kRowChunks;
      const int position = Rows::position(first_row + row);
      ptx::Chunk x = {};
      if (position < sequence.q_len && chunk * kChunkBytes < args_.d_qk) {
        const i64 at = sequence.q_batch * args_.q_stride.batch +
                       (sequence.q_first + position) * args_.q_stride.seq +
                       Rows::head(tile.head, first_row + row) * args_.q_stride.head;
        x = ptx::ld_global_16(static_cast<const char*>(args_.q) + at + chunk * kChunkBytes);
      }
      write(to, row, chunk, x, Config::DType::from_halves);
    }
  }

  __device__ void convert_block(const Tile& tile, int first_key, int num_keys) {
    const int stage = ring_.stage, head = kv_head<Config>(tile, args_);
    const int last_key = min(first_key + Config::kBC, num_keys) - 1;
    const FactorsOfRows k_factors(args_.k_descale, args_.k_descale_stride, tile.batch, head,
                                  first_key, last_key);
    const FactorsOfRows v_factors(args_.v_descale, args_.v_descale_stride, tile.batch, head,
                                  first_key, last_key);
    wait(landing_.k_full(stage), converted_.k_empty(stage));
    convert(landing_.k(stage), converted_.k(stage), k_factors);
    pass_on(converted_.k_full(stage), landing_.k_empty(stage));
    wait(landing_.v_full(stage), converted_.v_empty(stage));
    convert(landing_.v(stage), converted_.v(stage), v_factors);
    pass_on(converted_.v_full(stage), landing_.v_empty(stage));
    ring_.advance();
  }

  __device__ void wait(ptx::Mbarrier full, ptx::Mbarrier empty) const {
    ptx::mbarrier_wait(full, ring_.parity);       // the tile of 8 bits has arrived
    ptx::mbarrier_wait(empty, ring_.parity ^ 1);  // all consumers have released that of 16 bits
  }

  __device__ void convert(typename Landing::KVTile from, typename Converted::KVTile to,
                          const FactorsOfRows& factors) const {
    constexpr int kRowChunks = Landing::KVTile::kRowBytes / kChunkBytes;
#pragma unroll 2
    for (int i = thread_; i < Landing::KVTile::kBytes / kChunkBytes; i += kThreads) {
      const ptx::Chunk x = ptx::ld_shared_16(from.address + i * kChunkBytes);
      const int row = i / kRowChunks;
      write(to, row, i % kRowChunks, x, [&](u32 halves) {
        return factors.template convert<typename Config::DType>(halves, row);
      });
    }
  }

  // 16 numbers of 8 bits are two chunks of 16 bits.
  template <class To, class Convert>
  static __device__ void write(To to, int row, int chunk, const ptx::Chunk& x, Convert convert) {
    const auto low = [&](u32 bytes) {
      return convert(ptx::E4m3::to_f16x2(static_cast<unsigned short>(bytes)));
    };
    const auto high = [&](u32 bytes) { return low(bytes >> 16); };
    ptx::st_shared_16(to.chunk(row, 2 * chunk), {low(x.x), high(x.x), low(x.y), high(x.y)});
    ptx::st_shared_16(to.chunk(row, 2 * chunk + 1), {low(x.z), high(x.z), low(x.w), high(x.w)});
  }

  template <class... Barriers>
  static __device__ void pass_on(Barriers... barriers) {
    ptx::fence_proxy_async();  // products see the writes, and the copy engine comes after the reads
    __syncwarp();              // all lanes have come so far
    if (lane_id() == 0) (ptx::mbarrier_arrive(barriers), ...);
  }

  const Landing& landing_;
  const Converted& converted_;
  const ForwardKernelArgs& args_;
  const int thread_;
  Ring<Config::kStages> ring_;
};

}  // namespace fa::sm90
