// SPDX-License-Identifier: Apache-2.0
// Warp specialisation for K and V of 8 bits: one warp loads, the other warps of its warpgroup convert to 16
// bits, and the consumers compute. A single consumer, which waits most of the time, converts V itself.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/ptx/math.cuh>
#include <fa/ptx/memory.cuh>
#include <fa/sm90/roles/specialised.cuh>
#include <fa/sm90/shared_memory.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// Where K and V of 8 bits arrive, behind the shared memory of a kernel of 16 bits: a tile of plain rows
// and a pair of mbarriers for every stage. The producer fills them, and the converter empties them.
template <int Columns, int Rows>
struct LandingTile {
  static constexpr int kCount = 1;  // panels
  static constexpr int kColumns = Columns;
  static constexpr int kRows = Rows;
  static constexpr int kRowBytes = Columns;
  static constexpr int kBytes = Rows * kRowBytes;

  u32 address;

  __device__ u32 panel(int) const { return address; }
  __device__ u32 chunk(int row, int n) const { return address + row * kRowBytes + n * kChunkBytes; }
  __device__ u32 eight(int row, int n) const { return address + row * kRowBytes + n * 8; }
};

template <class Config>
inline constexpr bool kConsumerConverts =
    Config::kConsumers == 1 && Config::Descale::kKeepsElements;

template <class Config>
class LandingMemory : public SharedMemory<Config> {
  using Converted = SharedMemory<Config>;
  using ConvertedTile = typename Converted::KVTile;
  static constexpr int kStages = Config::kStages;

 public:
  using KVTile = LandingTile<ConvertedTile::kCount * ConvertedTile::kColumns, Config::kBC>;
  using KVPipeline = Pipeline<KVTile, kStages>;

 private:
  static constexpr int kV = KVPipeline::kTileBytes;
  static constexpr int kKBarriers = kV + KVPipeline::kTileBytes;
  static constexpr int kVBarriers = kKBarriers + KVPipeline::kBarrierBytes;
  static_assert(2 * KVPipeline::kBarrierBytes <= Config::kLandingBarrierBytes);

 public:
  static constexpr int kBytes = Converted::kBytes + kKBarriers + Config::kLandingBarrierBytes;
  static_assert(Config::kLandingColumns == KVTile::kColumns, "columns of a box of K or V");

  __device__ explicit LandingMemory(u32 base) : Converted(base), base_(base + Converted::kBytes) {}

  __device__ KVPipeline k_pipeline() const { return {base_, base_ + kKBarriers}; }
  __device__ KVPipeline v_pipeline() const { return {base_ + kV, base_ + kVBarriers}; }

  // Every warp that converts arrives once at an empty barrier.
  __device__ void init_barriers() const {
    constexpr int kFillers = Config::Pages::template kArrivals<Config>;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      k_pipeline().init_full(stage, kFillers);
      v_pipeline().init_full(stage, kFillers);
      k_pipeline().init_empty(stage, kConverters<Config>);
      v_pipeline().init_empty(stage,
                              kConsumerConverts<Config> ? kWarpgroupWarps : kConverters<Config>);
    }
    Converted::init_barriers();
  }

 private:
  const u32 base_;
};

// Eight numbers of 8 bits become a chunk of 16 bits.
template <class Convert>
__device__ ptx::Chunk converted(const ptx::Pair& x, Convert convert) {
  const auto low = [&](u32 bytes) {
    return convert(ptx::E4m3::to_f16x2(static_cast<unsigned short>(bytes)));
  };
  const auto high = [&](u32 bytes) { return low(bytes >> 16); };
  return {low(x.x), high(x.x), low(x.y), high(x.y)};
}

// Converts a tile with `Threads` threads, of which this is one. Lanes next to each other write the chunks of
// a row, which are in different banks.
template <class Config, int Threads, class From, class To, class FactorsOfRows>
__device__ void convert_tile(From from, To to, const FactorsOfRows& factors, int thread) {
  constexpr int kRowChunks = To::kCount * To::kRowBytes / kChunkBytes;
#pragma unroll 4
  for (int i = thread; i < From::kRows * kRowChunks; i += Threads) {
    const int row = i / kRowChunks;
    const ptx::Pair x = ptx::ld_shared_pair(from.eight(row, i % kRowChunks));
    ptx::st_shared_16(to.chunk(row, i % kRowChunks), converted(x, [&](u32 halves) {
                        return factors.template convert<typename Products<Config>::DType>(halves,
                                                                                          row);
                      }));
  }
}

// Tells that the warp has converted.
template <class... Barriers>
__device__ void pass_on(Barriers... barriers) {
  ptx::fence_proxy_async();  // products see the writes, and the copy engine comes after the reads
  __syncwarp();              // all lanes have come so far
  if (lane_id() == 0) (ptx::mbarrier_arrive(barriers), ...);
}

// The converter: warps of the producer's warpgroup that turn K and V of 8 bits into elements of 16 bits,
// from where they land to where the products read them. The numbers stay the same. Q of 8 bits, which is
// read once, comes straight from global memory.
template <class Config>
class Converter {
  using Converted = SharedMemory<Config>;
  using Landing = LandingMemory<Config>;
  using FactorsOfRows = typename Config::Descale::Rows;
  static constexpr int kThreads = kConverters<Config> * kWarpSize;

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
      converted_.q_pipeline().acquire(w, parity);  // the previous Q was read
      read_queries(converted_.q(w), tile, w, sequence);
      pass_on(converted_.q_pipeline().full(w));
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
      const auto from_halves = Products<Config>::DType::from_halves;
      ptx::st_shared_16(to.chunk(row, 2 * chunk), converted({x.x, x.y}, from_halves));
      ptx::st_shared_16(to.chunk(row, 2 * chunk + 1), converted({x.z, x.w}, from_halves));
    }
  }

  __device__ void convert_block(const Tile& tile, int first_key, int num_keys) {
    const int head = kv_head<Config>(tile, args_);
    const int last_key = min(first_key + Config::kBC, num_keys) - 1;
    const FactorsOfRows k_factors(args_.k_descale, args_.k_descale_stride, tile.batch, head,
                                  first_key, last_key);
    const FactorsOfRows v_factors(args_.v_descale, args_.v_descale_stride, tile.batch, head,
                                  first_key, last_key);
    convert(landing_.k_pipeline(), converted_.k_pipeline(), k_factors);
    if (!kConsumerConverts<Config>)
      convert(landing_.v_pipeline(), converted_.v_pipeline(), v_factors);
    ring_.advance();
  }

  __device__ void convert(typename Landing::KVPipeline from, typename Converted::KVPipeline to,
                          const FactorsOfRows& factors) const {
    from.wait(ring_);   // the tile of 8 bits has arrived
    to.acquire(ring_);  // all consumers have released that of 16 bits
    convert_tile<Config, kThreads>(from.tile(ring_.stage), to.tile(ring_.stage), factors, thread_);
    pass_on(to.full(ring_.stage), from.empty(ring_.stage));
  }

  const Landing& landing_;
  const Converted& converted_;
  const ForwardKernelArgs& args_;
  const int thread_;
  Ring<Config::kStages> ring_;
};

}  // namespace fa::sm90

namespace fa::sm90::roles {

struct Converting {
  template <class Config>
  static __device__ void run(const TensorMaps& maps, const ForwardKernelArgs& args, u32 base) {
    const LandingMemory<Config> smem(base);
    specialise<Config>(maps, args, smem, [&](const LandingMemory<Config>& smem) {
      Converter<Config>(smem, args, threadIdx.x - kFirstHelper<Config>).run();
    });
  }

  template <class Config>
  static __device__ void wait_values(const SharedMemory<Config>& smem,
                                     const Ring<Config::kStages>& at, bool& is_there) {
    if constexpr (!kConsumerConverts<Config>) {
      smem.v_pipeline().wait(at);
    } else if (!is_there) {
      const auto landed = LandingMemory<Config>(smem.base()).v_pipeline();
      landed.wait(at);  // the tile of 8 bits has arrived
      convert_tile<Config, kWarpgroupSize>(landed.tile(at.stage), smem.v(at.stage),
                                           typename Config::Descale::Rows{},
                                           threadIdx.x % kWarpgroupSize);
      pass_on(landed.empty(at.stage));
      sync_warpgroup(0);  // all four warps have converted their part
      is_there = true;
    }
  }
  template <class Config>
  static __device__ void release_values(const SharedMemory<Config>& smem,
                                        const Ring<Config::kStages>& at) {
    if (!kConsumerConverts<Config>) smem.v_pipeline().release(at);
  }
};

}  // namespace fa::sm90::roles
