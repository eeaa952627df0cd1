# SPDX-License-Identifier: Apache-2.0
"""The heuristic of the FP8 kernels: shapes that a probe on an H200 found fastest."""

from __future__ import annotations

from typing import Any

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.decode import MOST_TRANSPOSED
from flash_attention.families.sm90.forward.heuristic import (
    NEEDS_HOPPER_8_BIT,
    PACKED_GROUP_MIB,
    group_mib,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.fp8.config import D_HEADS, HopperFp8KernelConfig
from flash_attention.families.sm90.fp8.transpose import tiles_bytes
from flash_attention.families.values import smallest_holding

PROMOTED_KEYS = 896
"""The keys after which O leaves the accumulators. With 8,192 keys and V = normal + 1 the error of
the output was 9.1e-3 at most, and it grows with their number: 1.04e-2 for 1,024 keys."""
MOST_UNPROMOTED = 1024  # keys that O is computed from in the accumulators alone
LINEAR_KEYS = {64: 8192, 128: 16384}
"""Up to as many keys a quarter of the weights is piecewise linear. The relative RMS error of normal
data grows with their number, and stays below 3e-2."""
TWO_CONSUMERS = 128  # queries that two consumers hold


def unreadable(problem: Problem) -> str | None:
    """Say why FP8 kernels do not read the tensors of a problem, or return None if they do."""
    if problem.block_descales:
        return "FP8 kernels have one factor for all keys of a head"
    return None


def heuristic(problem: Problem, arch: Arch) -> HopperFp8KernelConfig | str:
    """Return the config for a problem, or why there is none."""
    if why := unreadable(problem):
        return why
    if problem.batch_invariant:
        return "V of few queries, which batch_invariant includes, is not worth a transposition"
    by_lengths = problem.total_q is not None or problem.page_keys
    if by_lengths and problem.seq_q * problem.heads_per_kv <= WARPGROUP_ROWS:
        return "V of few queries is not worth a transposition"
    d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
    if not d_head:
        return f"FP8 kernels have head dimensions up to {max(D_HEADS)}"
    masked = problem.causal or problem.window is not None
    uneven = masked or problem.per_batch  # tiles differ in length
    order: dict[str, Any] = {"tile_order": TileOrder.PERSISTENT}
    if uneven:
        group = PACKED_GROUP_MIB if problem.per_batch else group_mib(problem)
        order = {"tile_order": TileOrder.DYNAMIC, "group_mib": group}
    dtype = DType.from_string(str(problem.out_dtype))
    shape = _shape(d_head, problem) | {"values_transposed": problem.v_transposed}
    config = HopperFp8KernelConfig(dtype, d_head, **shape, **order)
    if config.broken_rule(arch):
        return NEEDS_HOPPER_8_BIT
    return _too_large(config, problem) or config


def decisive(config: HopperFp8KernelConfig, problem: Problem) -> tuple[object, ...]:
    """Return what of the lengths of a problem decides its config, if there is one."""
    return (
        problem.seq_k > MOST_UNPROMOTED,
        problem.seq_k > LINEAR_KEYS.get(config.d_head, 0),
        problem.seq_q > TWO_CONSUMERS,
        problem.seq_q * problem.heads_per_kv <= WARPGROUP_ROWS,
        problem.page_keys and tiles_bytes(config, problem) <= MOST_TRANSPOSED,
    )


def _too_large(config: HopperFp8KernelConfig, problem: Problem) -> str | None:
    """Say why V of a paged KV cache should not be transposed, or return None. The host does not
    know how many keys a sequence has, so each has room for the longest."""
    if not problem.page_keys or (size := tiles_bytes(config, problem)) <= MOST_TRANSPOSED:
        return None
    return (
        f"V of {problem.batch} sequences of up to {problem.seq_k} keys would be transposed into"
        f" {size >> 20} MiB, over {MOST_TRANSPOSED >> 20}"
    )


def _shape(d_head: int, problem: Problem) -> dict[str, Any]:
    long = problem.seq_k > MOST_UNPROMOTED
    if d_head < 256:
        shape: dict[str, Any] = {"B_c": 128, "q_in_registers": True, "tensor_sums": True}
        shape["linear_groups"] = int(problem.seq_k <= LINEAR_KEYS[d_head])
        shape["promote_blocks"] = PROMOTED_KEYS // 128 if long else 0
        if d_head == 128:
            return shape | {"consumers": 2, "stages": 3, "overlap": True}
        consumers = 3 if problem.seq_q > TWO_CONSUMERS else 2
        return shape | {"consumers": consumers, "stages": 4, "q_buffers": 2}
    shape = {"consumers": 2, "overlap": True}
    if long:
        return shape | {"B_c": 64, "stages": 4, "promote_blocks": PROMOTED_KEYS // 64}
    keys = {"B_c": 64, "stages": 4} if problem.v_transposed else {"B_c": 96, "stages": 3}
    return shape | keys | {"q_buffers": 2}
