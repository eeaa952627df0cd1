// SPDX-License-Identifier: Apache-2.0
// The main kernels of a backward pass: gradients of the rows that a CTA owns.
#pragma once
#include <fa/sm80/backward/block.cuh>
#include <fa/sm80/mma.cuh>
#include <fa/sm80/rows.cuh>
#include <fa/sm80/tile.cuh>

namespace fa::sm80::backward {

template <class T, class Config>
concept OuterLoopSlot =
    requires(typename T::template Scope<Config>& scope, Accumulator<16, 16>& s, u32 smem, int row) {
      scope.empty();
      scope.first_row();
      scope.visits_any();
      scope.visits(scope.after(scope.first()));
      scope.load_stats(smem, scope.first());
      scope.hold_stats(row);
      scope.lse(smem, row).of(row, row);
      scope.delta(smem, row).of(row, row);
      scope.hide(s, row, scope.first(), row);
      { scope.at(row, scope.first(), row) } -> Same<attn::Place>;
      { scope.function_hides(scope.first()) } -> Same<bool>;
      requires TensorView<decltype(scope.own_s())> && TensorView<decltype(scope.own_dp())>;
      requires TensorView<decltype(scope.visited_s(scope.first()))>;
      requires TensorView<decltype(scope.visited_dp(scope.first()))>;
      requires TensorView<decltype(scope.ds_sum())>;
    };

template <class T, class Config>
concept OperandsSlot = requires(Block<Config>& block, typename Block<Config>::Place place) {
  { T::kStoresP } -> Same<const bool&>;
  T::run(block, 0, place);
};

template <class T, class Config>
concept ScheduleSlot = requires(Block<Config>& block) { T::run(block); };

template <class T, class Config>
concept StoreSlot = requires(const Block<Config>& block, PredicatedRows<Config> rows,
                             const Accumulator<16, 16>& sum) { T::run(block, 0u, rows, sum, 1.f); };

// Fails to compile at the first slot of `Config` whose variant does not satisfy its concept.
template <class Config>
__device__ constexpr bool check_slots() {
  static_assert(LayoutSlot<typename Config::Layout>,
                "Layout: place(row, chunk), advance(address, bytes)");
  static_assert(FragmentLoadsSlot<typename Config::FragmentLoads>,
                "FragmentLoads: begin<Steps>(read), before<Steps>");
  static_assert(OuterLoopSlot<typename Config::OuterLoop, Config>,
                "OuterLoop: Scope<Config> of the rows of a CTA and the blocks that it visits");
  static_assert(OperandsSlot<typename Config::Operands, Config>,
                "Operands: kStoresP, run(block, stage, place)");
  static_assert(ScheduleSlot<typename Config::Schedule, Config>, "Schedule: run(block)");
  static_assert(AdditionsSlot<typename Config::Additions>,
                "Additions: Order, add(fragment, values)");
  static_assert(StoreSlot<typename Config::Store, Config>,
                "Store: run(block, tile, rows, sum, factor)");
  return true;
}

template <class Config>
__device__ void run(const BackwardKernelArgs& args, const void* smem) {
  static_assert(check_slots<Config>());
  Block<Config> block(args, ptx::smem_address(smem));
  if (block.empty()) return;
  if (block.visits_any()) Config::Schedule::run(block);
  block.store();
}

}  // namespace fa::sm80::backward
