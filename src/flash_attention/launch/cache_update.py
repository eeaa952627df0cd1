# SPDX-License-Identifier: Apache-2.0
"""Updates of a KV cache by a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys
from flash_attention.families.cache_update import (
    cache_recipe,
    cache_tensors,
    has_whole_chunks,
)
from flash_attention.families.recipe import Recipe
from flash_attention.launch.small import run_small

CACHES = ("k_cache", "v_cache")
FOUND = ("rotated_q", "used", "starts", "own_table")
"""What the kernel writes besides new rows."""


def update_cache(call: CacheCall, keys: CachedKeys | None = None) -> CachedKeys:
    """Store the new rows of a checked call, and describe the keys, in `keys` if these are given. On
    a GPU nothing waits for it; on the CPU the emulator runs the kernel."""
    keys = keys or call.empty_keys()
    if call.batch == 0:
        return keys
    tensors = cache_tensors(call, keys)
    whole_chunks = has_whole_chunks(tensors)

    def recipe_for(target: str) -> Recipe:
        return cache_recipe(call, tensors, target, whole_chunks=whole_chunks)

    in_use = call.lengths if isinstance(call.lengths, int) else 0
    written = [*(CACHES if call.new_rows else ()), *(name for name in FOUND if name in tensors)]
    key = _key(call, tensors, whole_chunks)
    run_small(key, call.k_cache.get_device(), recipe_for, tensors, written, all_in_use=in_use)
    return keys


def _key(call: CacheCall, tensors: Mapping[str, Tensor], whole_chunks: bool) -> tuple[object, ...]:
    """Everything that a plan depends on."""
    of_tensors = tuple((name, t.shape, t.stride(), t.dtype) for name, t in tensors.items())
    rotary = call.rotary and (call.rotary.interleaved, call.rotary.one_position)
    return ("cache", of_tensors, call.k_cache.device, rotary, call.max_seqlen_q, whole_chunks)
