# SPDX-License-Identifier: Apache-2.0
"""Which sm_80 kernel runs a problem that nobody measured."""

from __future__ import annotations

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.families.sm80.forward.config import D_HEADS, FlashForwardKernelConfig
from flash_attention.families.values import smallest_holding

FEW_ROWS = 64  # of Q, up to which tiles are short
SWITCHES = (
    "async+eager+swizzled+load_2_2_1_tiles+buffer+opt_softmax+folded+serpentine+staged+reciprocal"
    "+panels"
)


def heuristic(problem: Problem, arch: Arch) -> FlashForwardKernelConfig | str:
    """Tall tiles, or short ones for few queries; 16 rows a warp where 32 do not fit registers.
    Tall ones are for all lengths, if rows must not depend on each other."""
    d_head = smallest_holding(D_HEADS, problem.d_head, problem.d_v)
    if not d_head:
        return f"sm_80 kernels have head dimensions up to {max(D_HEADS)}"
    short = problem.seq_q <= FEW_ROWS and not problem.batch_invariant
    tile = (64, 64, 4) if short else (128, 32, 4 if d_head <= 128 else 8)
    dtype = DType.from_string(str(problem.dtype)).name
    config = FlashForwardKernelConfig.from_words(
        [dtype, *map(str, (d_head, *tile))], SWITCHES.split("+")
    )
    violation = config.broken_rule(arch)
    return config if violation is None else violation.message
