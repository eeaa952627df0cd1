# SPDX-License-Identifier: Apache-2.0
"""Mixed steps of a serving engine: some sequences decode, and others have chunks of prompts.

A kernel for chunks has tiles of 128 rows or more, of which a decoding sequence fills a few. The
host does not know the lengths, so it cannot put these sequences into a call of their own. It can
launch two kernels for all sequences: either computes those with its numbers of queries.
"""

from __future__ import annotations

from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3
from flash_attention.families.sm90.forward.config import WARPGROUP_ROWS
from flash_attention.families.sm90.forward.heuristic import hopper_d_head

UNTRANSPOSED_QUERIES = 128
"""The queries of a sequence of 8 bits whose V is not worth a transposition. The fewer sequences may
have more, the less memory the others need for theirs."""
DECODING_8_BIT = 4
"""The sequences with few queries that are worth a launch of their own. With 2 of them two launches
took 6 us more than one, and with 14 of them 26 us less: a line between crosses zero at 4."""


def few_queries(problem: Problem, mixed: bool | None = None) -> int:
    """Return how many queries the sequences have at most that a kernel for decoding computes beside
    the kernel for the others, or 0 if one kernel computes all. `mixed` decides in place of the
    rule, if two kernels can compute the problem."""
    if mixed is False or problem.is_shared or problem.idle:
        return 0
    few = WARPGROUP_ROWS // problem.heads_per_kv
    if few and problem.dtype == E4M3:
        few = UNTRANSPOSED_QUERIES
    if not 0 < few < problem.seq_q or not _can_be_shared(problem):
        return 0
    return few if mixed or _pays(problem, few) else 0


def _can_be_shared(problem: Problem) -> bool:
    """Whether queries are packed and keys are in a cache, and kernels that split keys have all that
    is asked for."""
    if problem.total_q is None or problem.total_k is not None or not problem.seqused_k:
        return False
    if problem.batch_invariant or problem.block_descales or problem.program is not None:
        return False
    return not (problem.dropout_p or problem.return_max) and hopper_d_head(problem) > 0


def _pays(problem: Problem, few: int) -> bool:
    """Whether a second launch costs less than it gains.

    One launch for 8 bits converts or transposes K and V of every decoding sequence. On steps of
    vLLM (`python -m benchmarks.recorded.replay --launches both`) two launches were 1.8 times as
    fast on an H200. For 16 bits tiles read K and V as fast as those for decoding, and with a window
    they read few: two launches were 0.91 times as fast as one. Steps with a window gained 6% at
    most. Of the others a few gained up to 60%, those of a prompt beside sequences with many times
    its keys. Steps that lost look much the same to the host, which does not know these keys.
    """
    return problem.kv_8_bit and decoding_at_least(problem, few) >= DECODING_8_BIT


def decoding_at_least(problem: Problem, few: int) -> int:
    """Return how many sequences have up to `few` queries at least, if one has `seq_q` of them: the
    queries that are left are enough for so many sequences with more."""
    assert problem.total_q is not None
    left = max(problem.total_q - problem.seq_q, 0)
    return max(problem.batch - 1 - left // (few + 1), 0)
