# SPDX-License-Identifier: Apache-2.0
"""Why mutations of PTX are harmless: what else orders the accesses that a changed line ordered.

A reason that names another line is proved by a run. Changed together, the two lines give findings
that the other line alone does not give.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a mutation is harmless, and the mutation (mistake, place) beside which it is not."""

    text: str
    beside: tuple[str, int] | None = None


NO_BARRIER, NO_WAIT, NO_SYNCWARP = "no barrier", "no wait for a group", "no __syncwarp"
ONE_MORE = "one more group may be pending"
AMPERE, PING_PONG = "sm_80 forward, rung 16", "sm_90 forward, rung 21"
PERSISTENT = "sm_90 forward, rung 29"
SPLIT, BACKWARD = "sm_90 split keys, one launch", "sm_90 backward, dQ in order"

_Q_LATER = "Q is read behind the next wait and the next barrier, those of K, which cover it."
_NO_STORES = (
    "No bulk store is in flight: this kernel stores O and its partial results by `st.global`."
)
_CONVERGENT = (
    "It orders nothing: each lane waits for Q itself, at the mbarrier before it. It tells the"
    " compiler that the lanes are together."
)

# By kernel, mistake, and place among the sites of the mistake's rule.
REASONS: dict[tuple[str, str, int], Reason] = {
    (AMPERE, NO_BARRIER, 0): Reason(_Q_LATER, (NO_BARRIER, 1)),
    (AMPERE, NO_WAIT, 0): Reason(_Q_LATER, (NO_WAIT, 1)),
    (AMPERE, ONE_MORE, 0): Reason(_Q_LATER, (NO_WAIT, 1)),
    (PING_PONG, ONE_MORE, 5): Reason(
        "Each store has been waited for before, until it has read shared memory.", (NO_WAIT, 0)
    ),
    **{(kernel, NO_SYNCWARP, 0): Reason(_CONVERGENT) for kernel in (PING_PONG, PERSISTENT, SPLIT)},
    (SPLIT, NO_BARRIER, 1): Reason(
        "It orders nothing: each of the four warps waits for K itself, at the mbarrier before it."
        " The barrier tells the compiler that the warps converge."
    ),
    (SPLIT, NO_WAIT, 4): Reason(_NO_STORES),
    (SPLIT, ONE_MORE, 4): Reason(_NO_STORES),
    (BACKWARD, "no fence of wgmma", 6): Reason(
        "A and B are in shared memory. Other instructions use the accumulator only behind these"
        " products, and other fences stand between that use and the next products, on every path."
    ),
}
