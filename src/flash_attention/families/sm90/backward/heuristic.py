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
FEW_SHARED_KEYS = 256  # where tiles walk several heads, which wait for each other longer
FEW_SHARED_CAUSAL_KEYS = 512  # the same under a causal mask, at the widest d_head
HIDING_TILES = {64: 12, 96: 16, 128: 16}  # by d_head
"""More tiles than so many times the square of the tiles of a head hide that tiles take turns."""
FEW_PACKED_TILES = 264  # up to so many, nothing hides that they differ in length
ROWS_IN_L2 = {32: 1 << 17, 64: 1 << 16, 96: 1 << 15, 128: 1 << 14}  # by d_head
"""The rows of Q that L2 holds, with those of dO and of the sums of dQ."""
FEW_PACKED_QUERIES = {False: 512, True: 1024}  # of the longest sequence, by whether it is causal
KEYS = 128  # of a tile that has a warpgroup for dQ
SHORT_KEYS = 3072
SHORT_CAUSAL_HEADS = {64: 16, 96: 32, 128: 32}  # side by side up to so many keys, by d_head
SHORT_WINDOW_HEADS = {64: 16, 96: 32}
SHORT_FULL_HEADS = {64: 16}
LONG_CAUSAL_KEYS, LONG_CAUSAL_HEADS = 4096, 4  # with more keys at the widest d_head
FEW_PACKED_HEADS = 32  # side by side, so that the tiles of short sequences come last
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
        # With a product less in flight there is room for the weights that dropout leaves.
        paired = in_order or (own_warpgroup and problem.dropout_p > 0)
        schedule = Schedule.PAIRED if paired else schedule
    # Each tile begins with the first stage: the more stages, the longer short tiles wait. Packed
    # sequences of 1,000 to 7,000 tokens under a causal mask are 2 to 4 % faster with a third stage
    # and without K in registers all the same.
    slanted = d_head == 96 and problem.per_batch and problem.causal and not in_order
    return HopperBackwardKernelConfig(
        DType.from_string(str(problem.dtype)),
        d_head,
        B_r=_queries_of_a_block(problem, d_head),
        B_c=64 if wide else 128,
        stages=3 if d_head == 96 and (slanted or not problem.per_batch) else 2,
        query_gradient=query_gradient,
        ds_stages=2 if problem.wanted.dq or wide else 0,
        derivative=derivative,
        schedule=schedule,
        tile_order=TileOrder.GROUPED if wide else TileOrder.DYNAMIC,
        group_heads=_group_heads(problem, d_head, query_gradient),
        k_in_registers=query_gradient is QueryGradient.OWN_WARPGROUP
        and d_head in K_IN_REGISTERS
        and not slanted
        and not problem.dropout_p  # whose weights take their room
        and problem.program is None,
    )


def _queries_of_a_block(problem: BackwardProblem, d_head: int) -> int:
    """Return how many queries a tile visits at a time. Half of them leave fewer rows of nobody in
    short packed sequences, and overlap where there would be one block. Slopes take registers."""
    if d_head > 64 or _has_slopes(problem):
        return 64
    if problem.per_batch:
        return 64 if problem.seq_q <= FEW_PACKED_QUERIES[problem.causal] else 128
    return 64 if problem.seq_q <= 128 else 128


def _has_slopes(problem: BackwardProblem) -> bool:
    """Whether derivatives of the scores are kept."""
    return problem.softcap > 0 or keeps_derivatives(problem.program)


def chooses(config: HopperBackwardKernelConfig, problem: BackwardProblem) -> bool:
    """Whether the heuristic chooses what depends on lengths as a config has it."""
    query_gradient = _query_gradient(problem, config.d_head)
    return (config.query_gradient, config.B_r, config.group_heads) == (
        query_gradient,
        _queries_of_a_block(problem, config.d_head),
        _group_heads(problem, config.d_head, query_gradient),
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
    short = problem.seq_k <= (_few_keys(problem, d_head) if d_head > 32 else KEYS)
    if problem.deterministic or (short and not problem.has_mask_function):
        return QueryGradient.ORDERED
    return QueryGradient.OWN_WARPGROUP


def _few_keys(problem: BackwardProblem, d_head: int) -> int:
    """Return up to how many keys turns were measured to cost less than sums."""
    packed, tiles = problem.total_k is not None, _num_tiles(problem)
    grouped = problem.heads_per_kv > 1
    if grouped and problem.causal and not packed and d_head == WIDEST_KEYS:
        return FEW_SHARED_CAUSAL_KEYS
    if grouped or (packed and tiles > FEW_PACKED_TILES and d_head <= 64):
        return FEW_SHARED_KEYS
    if problem.causal or problem.window is not None:
        return FEW_KEYS
    turns = -(-problem.seq_k // KEYS)
    return FEW_KEYS if tiles > HIDING_TILES.get(d_head, 0) * turns**2 else KEYS


def _num_tiles(problem: BackwardProblem) -> int:
    """Return how many tiles of keys there are, if they have a warpgroup for dQ. Only the device
    knows of packed sequences how much of their last tiles is empty: half of each is assumed."""
    blocks = problem.batch * -(-problem.seq_k // KEYS)
    if problem.total_k is not None:
        blocks = min(blocks, problem.total_k // KEYS + -(-problem.batch // 2))
    return blocks * problem.heads_k


def _group_heads(problem: BackwardProblem, d_head: int, query_gradient: QueryGradient) -> int:
    """Return how many heads of k run side by side."""
    if query_gradient is QueryGradient.ORDERED:
        return _heads_in_order(problem, d_head)
    if query_gradient is QueryGradient.OWN_WARPGROUP:
        return _heads_side_by_side(problem, d_head)
    return GROUP_HEADS


def _heads_side_by_side(problem: BackwardProblem, d_head: int) -> int:
    """Return how many heads of k run side by side if tiles do not take turns. Without grouped heads
    those of short sequences add to the same rows of dQ less often if they are of many heads."""
    dense = problem.total_k is None
    if not dense and _num_tiles(problem) <= FEW_PACKED_TILES:
        return FEW_PACKED_HEADS
    if problem.heads_per_kv > 1 or not _is_uneven(problem):
        return GROUP_HEADS
    if problem.causal and problem.window is None and dense:  # all short tiles come last
        long = problem.seq_k > LONG_CAUSAL_KEYS and d_head == WIDEST_KEYS
        return LONG_CAUSAL_HEADS if long else GROUP_HEADS
    if problem.seq_k > SHORT_KEYS:
        return GROUP_HEADS
    heads = SHORT_FULL_HEADS if problem.window is None else SHORT_WINDOW_HEADS
    return (SHORT_CAUSAL_HEADS if problem.causal else heads).get(d_head, GROUP_HEADS)


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
