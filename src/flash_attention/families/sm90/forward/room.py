# SPDX-License-Identifier: Apache-2.0
"""Which features leave three consumers too few registers, or a config too little shared memory."""

from __future__ import annotations

from flash_attention.call.problem import Problem
from flash_attention.families.sm90.forward.bias import has_bias, loads_bias
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tiles import SHORT
from flash_attention.program.bias import has_no_other_places
from flash_attention.program.reads import reads_pairs

MOST_OPERANDS = 112  # registers of O, S and P beside which three consumers change scores


def spills(problem: Problem, d_head: int) -> bool:
    """Whether a feature leaves too few registers for three consumers. A bias takes some, and three
    are faster with it all the same where there are many rows."""
    program = problem.program
    capped = problem.return_max and problem.softcap > 0
    costly = changes_scores(problem) and (d_head > 64 or reads_pairs(program))
    if program is not None and has_bias(problem) and d_head <= 64 and problem.seq_q > SHORT:
        costly = not has_no_other_places(program)
    wide = d_head > 80 and (program is not None or problem.return_max)
    drops = problem.dropout_p > 0 and (d_head > 64 or changes_scores(problem))
    return drops or problem.kv_8_bit or capped or costly or wide


def has_room(config: HopperForwardKernelConfig, problem: Problem) -> bool:
    """Whether the consumers have registers for the problem's function, if it changes scores: three
    need them beside O, S and P. A bias needs shared memory."""
    if has_bias(problem) and not loads_bias(config, problem):
        return False
    if config.consumers < 3 or not changes_scores(problem):
        return True
    operands = config.d_head // 2 + 3 * config.B_c // 4
    return operands <= MOST_OPERANDS and not reads_pairs(problem.program)


def changes_scores(problem: Problem) -> bool:
    """Whether a user's function changes scores."""
    return problem.program is not None and problem.program.score is not None
