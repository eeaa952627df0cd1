// SPDX-License-Identifier: Apache-2.0
// What variants may use of the consumer or the producer that they get: the verbs of a schedule, and what
// Output and Queries need. The slot PingPong says when a consumer may issue its products, the slot
// FirstBlock how wide its first block is, the slot Bias what is loaded beside K for a user's function.
#pragma once
#include <fa/attn/rescale.cuh>
#include <fa/attn/row_end.cuh>
#include <fa/sm90/shape.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

// For a block of `Keys` keys of one kind.
template <class C, int Keys, class Block>
concept WeighsBlock = requires(C& c, typename C::template Scores<Keys>& s,
                               typename C::template Weights<Keys>& p, Block block) {
  c.issue_scores(s, c.q(), c.k());
  c.draw(p, block);
  c.look_up(block);
  c.mask(s, block);
  c.try_stale_max(s, block);
  c.softmax(s, block);
  c.convert(p, s);
  c.rescale(c.o(), block);
  c.issue_accumulate(c.o(), p, c.v());
};

template <class C>
concept ScheduledConsumer =
    requires(C& c) {
      { c.has_block() } -> Same<bool>;
      { c.near_end() } -> Same<bool>;
      { c.open() } -> Same<bool>;
      { c.near_start() } -> Same<bool>;
      { c.template first_block_within<16>() } -> Same<bool>;
      c.next_block();
      c.ping_pong_wait();
      c.ping_pong_arrive();
      c.wait_k();
      c.wait_v();
      c.template wait_products<1>();
      c.release_k();
      c.release_v();
      c.queries_read();
      c.clear_tail();
      c.s();
      c.p();
    } && WeighsBlock<C, C::Config::kBC, attn::Masked> &&
    WeighsBlock<C, C::Config::kBC, attn::Open> && WeighsBlock<C, 16, attn::FirstMasked>;

template <class C>
concept StoringConsumer = requires(C& c) {
  { c.warpgroup() } -> Same<int>;
  c.o_map();
  c.q_tile();
  c.own_o_tile();
  c.release_q();
  { c.word() } -> Same<u32>;
};

template <class P>
concept PrefetchingProducer = requires(const P& producer, Tile tile) { producer.prefetch_q(tile); };

// A warpgroup may have no rows, or see no key of any number of blocks.
template <class Config>
inline constexpr bool kMayPassAny =
    Config::Lengths::kPerBatch || Config::kSkipEmpty || Config::Function::kListed;

// Calls `pass` for `count` blocks that the last warpgroup's rows see and this warpgroup's rows do not. These
// are few, or `Any` number if this warpgroup may have no rows.
template <class Config, bool Any, class Pass>
__device__ void pass_unseen(int count, Pass pass) {
  constexpr int kMost = ((Config::kConsumers - 1) * kWarpgroupRows + Config::kBC - 1) / Config::kBC;
#pragma unroll(Any ? 1 : kMost)
  for (int i = 0; Any ? uniform(i < count) : i < kMost; ++i)
    if (Any || uniform(i < count)) pass();
}

template <class Config>
class Consumer;
template <class Config>
class SharedMemory;

template <class T, class Config>
concept PingPongSlot =
    requires(const typename T::template Order<Config::kConsumers>& order, int warpgroup) {
      { typename T::template Order<Config::kConsumers>(warpgroup) };
      order.wait();
      order.arrive();
      order.finish();
    };

template <class T, class Config>
concept FirstBlockSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

template <class T, class Config>
concept ScheduleSlot = requires(Consumer<Config>& consumer) { T::run(consumer); };

}  // namespace fa::sm90

namespace fa::sm90::ping_pong {

// Every consumer issues its products when it is ready. The barrier of its four warps is not needed for
// correctness: after it the compiler knows that they are convergent, and keeps the operand addresses
// in uniform registers, which saves two moves per product.
struct Off {
  template <int Consumers>
  class Order {
   public:
    __device__ explicit Order(int warpgroup) : warpgroup_(warpgroup) {}
    __device__ void wait() const {
      // Waits for the four warps.
      ptx::named_barrier_sync(id_of(NamedBarrier::kPingPong, warpgroup_), kWarpgroupSize);
    }
    __device__ void arrive() const {}
    __device__ void finish() const {}

   private:
    const int warpgroup_;
  };
};

// Ping-pong: consumers alternate in issuing their products. While one computes exponentials, the other
// uses the tensor cores. A warpgroup waits at its own barrier, where the previous one arrives.
struct On {
  template <int Consumers>
  class Order {
   public:
    __device__ explicit Order(int warpgroup) : warpgroup_(warpgroup) {
      if (warpgroup == Consumers - 1) arrive();  // warpgroup 0 is the first to issue
    }
    __device__ void wait() const {
      // Waits until the previous warpgroup has issued its products.
      ptx::named_barrier_sync(id_of(NamedBarrier::kPingPong, warpgroup_), 2 * kWarpgroupSize);
    }
    __device__ void arrive() const {
      const int next = warpgroup_ == Consumers - 1 ? 0 : warpgroup_ + 1;
      ptx::named_barrier_arrive(id_of(NamedBarrier::kPingPong, next), 2 * kWarpgroupSize);
    }
    __device__ void finish() const {
      if (warpgroup_ == 0) wait();  // consumes the arrival that nobody waited for
    }

   private:
    const int warpgroup_;
  };
};

}  // namespace fa::sm90::ping_pong

namespace fa::sm90 {

// One key block: scores, softmax and O += P V, each finished before the next. S and P may be narrower
// than the block, if only its first keys are seen.
template <class Consumer, class Scores, class Weights, class Block>
__device__ void serial_step(Consumer& c, Scores& s, Weights& p, Block block) {
  c.draw(p, block);
  c.wait_k();                       // K has arrived
  c.ping_pong_wait();               // this warpgroup may issue
  c.issue_scores(s, c.q(), c.k());  // S = Q K^T
  c.ping_pong_arrive();
  c.look_up(block);               // which keys these are
  c.clear_tail();                 // V is zero beyond the last key
  c.template wait_products<0>();  // S is complete
  c.mask(s, block);
  c.try_stale_max(s, block);  // may read K again
  c.release_k();
  c.softmax(s, block);
  c.rescale(c.o(), block);
  c.convert(p, s);
  c.wait_v();                           // V has arrived
  c.issue_accumulate(c.o(), p, c.v());  // O += P V
  c.template wait_products<0>();        // O is complete, V was read
  c.release_v();
  c.next_block();
}

}  // namespace fa::sm90

namespace fa::sm90::first_block {

// The first block of a warpgroup is as wide as the others.
struct Whole {
  template <class Consumer>
  static __device__ void run(Consumer&) {}
};

// Where the rows of a warpgroup see only the first few keys of their first block (the diagonal of a
// causal mask, the end of the sequence), the products are only `Keys` wide.
template <int Keys>
struct Narrow {
  template <class Consumer>
  static __device__ void run(Consumer& c) {
    typename Consumer::template Scores<Keys> s;
    typename Consumer::template Weights<Keys> p;
    if (c.template first_block_within<Keys>()) serial_step(c, s, p, attn::FirstMasked{});
  }
};

}  // namespace fa::sm90::first_block

namespace fa::sm90 {

template <class T, class Config>
concept BiasSlot = requires(typename T::template Of<Config>& of, const SharedMemory<Config>& smem,
                            const attn::Place& place) {
  of.look(smem, 0);
  of.at(place);
  T::was_read();
};

}  // namespace fa::sm90

namespace fa::sm90::bias {

// Nothing is loaded beside K.
struct None {
  template <class Config>
  struct Of {
    __device__ void look(const SharedMemory<Config>&, int /*stage*/) {}
    __device__ const attn::Place& at(const attn::Place& place) const { return place; }
  };
  static __device__ void was_read() {}
};

}  // namespace fa::sm90::bias
