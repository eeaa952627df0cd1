// SPDX-License-Identifier: Apache-2.0
// What variants may use of the consumer or the producer that they get: the verbs of a schedule, and what
// Output and Queries need.
#pragma once
#include <fa/attn/online.cuh>
#include <fa/attn/slots.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

using attn::Same;

// For a block of `Keys` keys of one kind.
template <class C, int Keys, class Block>
concept WeighsBlock = requires(C& c, typename C::template Scores<Keys>& s,
                               typename C::template Weights<Keys>& p, Block block) {
  c.issue_scores(s, c.q(), c.k());
  c.mask(s, block);
  c.guess(s, block);
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
      c.begin_turn();
      c.end_turn();
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

}  // namespace fa::sm90
