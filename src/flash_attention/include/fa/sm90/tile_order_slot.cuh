// SPDX-License-Identifier: Apache-2.0
// What a tile order of the forward kernels must provide.
#pragma once
#include <fa/attn/slots.cuh>
#include <fa/sm90/tile.cuh>

namespace fa::sm90 {

using attn::Same;

template <class T, class Config>
concept TileOrderSlot =
    requires(typename T::template Walk<Config>& walk, Tile& tile, const ForwardKernelArgs& args) {
      { typename T::template Walk<Config>(args) };
      { walk.next(tile) } -> Same<bool>;
      walk.request();
      walk.finish();
    };

}  // namespace fa::sm90
