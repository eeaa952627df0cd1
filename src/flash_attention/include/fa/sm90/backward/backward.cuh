// SPDX-License-Identifier: Apache-2.0
// The sm_90a kernel of dK and dV, and of dQ or dS as Config::QueryGradient says. Warpgroup 0 loads, the
// next ones have 64 keys each, and the last one, if there is one more, computes dQ.
#pragma once
#include <fa/ptx/async.cuh>
#include <fa/sm90/backward/key_warpgroup.cuh>
#include <fa/sm90/backward/producer.cuh>
#include <fa/sm90/backward/query_gradient.cuh>
#include <fa/sm90/backward/tile_order.cuh>

namespace fa::sm90::backward {

template <class Config>
__device__ void run_query_warpgroup(const TensorMaps& maps, const BackwardKernelArgs& args) {
  if constexpr (Config::kQueryWarps > 0) {
    ptx::shrink_to<Config::kQueryRegisters>();
    typename Config::QueryGradient::template QueryWarpgroup<Config>(maps, args).run();
  }
}

// The producer is one thread of the first warp, the writer of dq_sum one of the second. The third is the
// clearer.
template <class Config>
__device__ void run_copies(const TensorMaps& maps, const BackwardKernelArgs& args) {
  if (threadIdx.x == 0) Producer<Config>(maps, args).run();
  if constexpr (Config::kWriterWarps > 0)
    if (threadIdx.x == kWarpSize)
      typename Config::QueryGradient::template Writer<Config>(args).run();
  if constexpr (Config::Lengths::kPerBatch)
    if (warp_id() == 2) Clearer<Config>(args).run();
}

template <class Config>
__device__ __forceinline__ void backward(const TensorMaps& maps, const BackwardKernelArgs& args,
                                         const void* smem) {
  using Smem = SharedMemory<Config>;
  static_assert(check_slots<Config>());
  static_assert(
      QueryGradientSlot<typename Config::QueryGradient, Config>,
      "QueryGradient: KeySide<Config, Warpgroup>(args) with begin_tile, hand_over, next_head");
  static_assert(KeyOperandSlot<typename Config::KeyOperand, Config>,
                "KeyOperand: Of<Config, Warpgroup> with read() and operand()");
  static_assert(BiasGradientSlot<typename Config::BiasGradient, Config>,
                "BiasGradient: Of<Config>(maps, args) with begin_tile(mail), next_head(), "
                "store(mail, stage, query), wait_read()");
  static_assert(Shape<Config>::kKeyWarpgroups == 2);
  static_assert(Smem::kBytes == Config::kSmemBytes + Config::kBiasBytes &&
                    Smem::kBiasBytes == Config::kBiasBytes,
                "the host's bytes of shared memory");
  if (threadIdx.x == 0) {
    check_smem_start(smem);
    Smem::init_barriers();
  }
  ptx::launch_dependents();
  __syncthreads();  // the barriers are ready
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup > 0)
    ptx::wait_for_grid();  // the kernel before has ended; the producer takes a tile first
  if (warpgroup == 0) {
    ptx::shrink_to<Config::kProducerRegisters>();
    run_copies<Config>(maps, args);
  } else if (warpgroup > Shape<Config>::kKeyWarpgroups) {
    run_query_warpgroup<Config>(maps, args);
  } else {
    ptx::grow_to<Config::kKeyRegisters>();
    if (warpgroup == 1)
      KeyWarpgroup<Config, 0>(maps, args).run();
    else
      KeyWarpgroup<Config, 1>(maps, args).run();
  }
}

}  // namespace fa::sm90::backward
