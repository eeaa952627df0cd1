# SPDX-License-Identifier: Apache-2.0
"""The heuristic of the Hopper backward kernels."""

from __future__ import annotations

import torch

from flash_attention.arch import Arch
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.families.sm90.backward.bias import may_load_bias, with_room
from flash_attention.families.sm90.backward.config import (
    D_HEADS,
    WIDEST_KEYS,
    HopperBackwardKernelConfig,
)
from flash_attention.families.sm90.backward.slots import (
    GROUP_HEADS,
    Derivative,
    QueryGradient,
    Schedule,
    TileOrder,
)
from flash_attention.families.sm90.forward.heuristic import NEEDS_HOPPER
from flash_attention.families.traced_args import keeps_derivatives
from flash_attention.families.values import smallest_holding

K_IN_REGISTERS = (32, 96)  # d_head where a key warpgroup has room for its K
FEW_KEYS = 1024  # up to so many, taking turns is faster than sums to clear and convert
FEW_TILES, FEW_KEYS_OF_FEW_TILES = 132, 512  # one for each multiprocessor: nothing hides the turns
FEW_PACKED_TILES = 264  # which differ in length
FEW_SHARED_KEYS = 256  # where tiles walk several heads, which wait for each other longer
ROWS_IN_L2 = {32: 1 << 17, 64: 1 << 16, 96: 1 << 15, 128: 1 << 14}  # by d_head
"""The rows of Q that L2 holds, with those of dO and of the sums of dQ."""
KEYS = 128  # of a tile that has a warpgroup for dQ
ENOUGH_TILES = 264  # twice the multiprocessors of an H200
SHORT_KEYS = 3072
SHORT_HEADS = {64: 16, 96: 32}  # side by side up to so many keys, by d_head
MOST_HEADS = 64  # side by side, so that few kernels serve all lengths
EVEN_COLUMNS = (256, 4096)  # of all heads side by side whose tiles take turns: the least, the most
UNEVEN_COLUMNS = (2048, 8192)


def heuristic(problem: BackwardProblem, arch: Arch) -> HopperBackwardKernelConfig | str:
    """Return the config for a problem, or why there is none."""
    if why := why_not(problem):
        return why
    config = _config(problem)
    if may_load_bias(problem):
        config = with_room(config)
    violation = config.broken_rule(arch)
    if violation is None:
        return config
    return NEEDS_HOPPER if violation.rule == "architecture" else violation.message


def why_not(problem: BackwardProblem) -> str | None:
    """Return why Hopper backward kernels do not compute a problem, or None if they do."""
    wanted = problem.wanted
    if not (any(wanted[:3]) or problem.gathers):
        return "Hopper backward kernels compute dq, dk or dv, and none of them is wanted"
    if not smallest_holding(D_HEADS, problem.d_head, problem.d_v):
        return f"Hopper backward kernels have head dimensions up to {max(D_HEADS)}"
    return None


def _config(problem: BackwardProblem) -> HopperBackwardKernelConfig:
    d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
    query_gradient = _query_gradient(problem, d_head)
    wide, in_order = d_head > WIDEST_KEYS, query_gradient is QueryGradient.ORDERED
    own_warpgroup = in_order or query_gradient is QueryGradient.OWN_WARPGROUP
    derivative, schedule = Derivative.EXACT, Schedule.SPLIT if wide else Schedule.IN_PLACE
    if d_head <= 64:
        # Half precision has no room for dP - delta of large gradients where P is small.
        pairs = own_warpgroup and problem.dtype == torch.bfloat16
        pairs = pairs and not problem.gathers_by_lanes
        derivative = Derivative.PAIRS if pairs else Derivative.ROUNDED
        schedule = Schedule.PAIRED if own_warpgroup else Schedule.IN_PLACE
    elif own_warpgroup or _has_slopes(problem):
        derivative = Derivative.ROUNDED
        schedule = Schedule.PAIRED if in_order else schedule
    return HopperBackwardKernelConfig(
        DType.from_string(str(problem.dtype)),
        d_head,
        B_r=128 if d_head <= 64 and not _has_slopes(problem) else 64,  # slopes take registers
        B_c=64 if wide else 128,
        # Each tile begins with the first stage: the more stages, the longer short tiles wait.
        stages=3 if d_head == 96 and not problem.per_batch else 2,
        query_gradient=query_gradient,
        ds_stages=2 if problem.wanted.dq or wide else 0,
        derivative=derivative,
        schedule=schedule,
        tile_order=TileOrder.GROUPED if wide else TileOrder.DYNAMIC,
        group_heads=_group_heads(problem, d_head, query_gradient),
        k_in_registers=query_gradient is QueryGradient.OWN_WARPGROUP
        and d_head in K_IN_REGISTERS
        and not problem.dropout_p  # whose weights take their room
        and problem.program is None,
    )


def _has_slopes(problem: BackwardProblem) -> bool:
    """Whether derivatives of the scores are kept."""
    return problem.softcap > 0 or keeps_derivatives(problem.program)


def chooses(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> bool:
    """Whether the heuristic chooses what depends on lengths as a config has it."""
    query_gradient = _query_gradient(problem, config.d_head)
    return config.query_gradient is query_gradient and config.group_heads == _group_heads(
        problem, config.d_head, query_gradient
    )


def _query_gradient(problem: BackwardProblem, d_head: int) -> QueryGradient:
    """Return how dQ is computed. Tiles that take turns need no sums to clear and convert, but wait
    for each other: most where sequences or tiles differ in length, and at d_head 128; and they have
    no lists of the blocks that a mask function shows. A warpgroup
    for dQ leaves the others no registers for the slopes of softcap at d_head 96 and 128."""
    if not problem.wanted.dq:
        return QueryGradient.NONE
    if d_head > WIDEST_KEYS or (d_head > 64 and _has_slopes(problem)):
        return QueryGradient.WORKSPACE
    few = FEW_KEYS
    many = problem.total_k is not None and _num_tiles(problem) > FEW_PACKED_TILES
    if many and (d_head <= 96 or problem.heads_per_kv > 1):  # whose turns cost more than sums
        few = 0
    elif not (problem.causal and problem.total_k is not None):  # their tiles are short
        few = FEW_KEYS if problem.heads_per_kv == 1 else FEW_SHARED_KEYS
        few_tiles = FEW_TILES if problem.total_k is None else FEW_PACKED_TILES
        if _num_tiles(problem) <= few_tiles:
            few = min(few, FEW_KEYS_OF_FEW_TILES)
    short = problem.seq_k <= few and d_head > 32 and not problem.has_mask_function
    if problem.deterministic or short:
        return QueryGradient.ORDERED
    return QueryGradient.OWN_WARPGROUP


def _num_tiles(problem: BackwardProblem) -> int:
    """Return how many tiles of keys there are at most, if they have a warpgroup for dQ."""
    blocks = problem.batch * -(-problem.seq_k // KEYS)
    if problem.total_k is not None:
        blocks = min(blocks, problem.total_k // KEYS + problem.batch)
    return blocks * problem.heads_k


def _group_heads(problem: BackwardProblem, d_head: int, query_gradient: QueryGradient) -> int:
    """Return how many heads of k run side by side."""
    if query_gradient is QueryGradient.ORDERED:
        return _heads_in_order(problem, d_head)
    if query_gradient is QueryGradient.OWN_WARPGROUP:
        return _heads_of_enough_tiles(problem, d_head)
    return GROUP_HEADS


def _heads_of_enough_tiles(problem: BackwardProblem, d_head: int) -> int:
    """Return how many heads of k run side by side, so that the short tiles of some fill the gaps
    that the long ones of others leave, unless all short tiles come last. Without grouped heads all
    tiles are short enough, but those of short sequences add to the same rows of dQ less often if
    they are of many heads."""
    heads = GROUP_HEADS
    if problem.causal and problem.window is None and problem.total_k is None:
        return heads
    if problem.heads_per_kv == 1 and problem.seq_k <= SHORT_KEYS and _is_uneven(problem):
        heads = SHORT_HEADS.get(d_head, heads)
    if problem.heads_per_kv > 1:
        while heads * -(-problem.seq_k // KEYS) < ENOUGH_TILES and heads < MOST_HEADS:
            heads *= 2
    return heads


def _heads_in_order(problem: BackwardProblem, d_head: int) -> int:
    """Return how many heads of k run side by side if tiles take turns. The more heads, the fewer
    tiles wait for each other. The fewer, the more of their rows stay in L2. Short tiles, which an
    uneven mask leads to, need more heads."""
    longest = max(1, problem.seq_q)
    if problem.per_batch:  # few kernels for the longest sequences of all batches
        longest = 1 << (longest - 1).bit_length()
    rows = longest * problem.heads_per_kv
    least, most = UNEVEN_COLUMNS if _is_uneven(problem) else EVEN_COLUMNS
    return min(max(ROWS_IN_L2[d_head] // rows, least // d_head), most // d_head)


def _is_uneven(problem: BackwardProblem) -> bool:
    """Whether tiles differ in the number of queries that see them."""
    return problem.causal or problem.window is not None or problem.per_batch
