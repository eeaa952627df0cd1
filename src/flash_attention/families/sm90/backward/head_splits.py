# SPDX-License-Identifier: Apache-2.0
"""Into how many splits the heads of q that share a head of k go.

A tile of keys visits the queries of all heads that share them, so grouped heads make few, long tiles. Where
these do not fill the GPU evenly, each tile has a split of the heads, and a kernel adds the splits of dK and
dV up.
"""

from __future__ import annotations

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.families.backward_args import key_rows
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig

SM_FLOP_PER_US = 4.2e6  # of one multiprocessor that has nothing to wait for
SUM_BYTES_PER_US = 3e6  # of splits that are stored and read again
SUMS = 2 * 2 * 4  # bytes of a column of dK and dV, stored and read
LAUNCH_US = 3.0  # of the kernel that adds the splits up


def head_splits(
    problem: BackwardProblem, config: HopperBackwardKernelConfig, num_sms: int
) -> int:
    """Return the number of splits that is expected to take the least time: a power of two, or one
    for each head."""
    group = problem.heads_per_kv
    choices = [*(1 << i for i in range((group - 1).bit_length())), group]
    return min(choices, key=lambda splits: _expected_us(problem, config, num_sms, splits))


def _expected_us(
    problem: BackwardProblem, config: HopperBackwardKernelConfig, num_sms: int, splits: int
) -> float:
    """Estimate the time of the main kernel and of adding up. The last tiles of the kernel leave
    multiprocessors idle, on average half as long as a tile takes."""
    block = 10 * config.B_r * config.B_c * config.d_head / SM_FLOP_PER_US
    rows, heads = -(-problem.seq_q // config.B_r), -(-problem.heads_per_kv // splits)
    longest = rows * heads * block
    total = _blocks(problem, config) * problem.heads * block
    main = max(longest, total / num_sms + longest / 2)
    if splits == 1:
        return main
    columns = splits * problem.heads_k * key_rows(problem) * config.d_head
    return main + LAUNCH_US + columns * SUMS / SUM_BYTES_PER_US


def _blocks(problem: BackwardProblem, config: HopperBackwardKernelConfig) -> float:
    """Return the blocks of scores of a head. Only the device knows the lengths of packed sequences:
    they are taken to be as long as each other."""
    queries = problem.batch * problem.seq_q if problem.total_q is None else problem.total_q
    keys = problem.seq_k if problem.total_k is None else problem.total_k / problem.batch
    if problem.window is not None:
        keys = min(keys, sum(problem.window))
    seen = keys / 2 if problem.causal else keys
    return max(1.0, queries / config.B_r) * max(1.0, seen / config.B_c)
