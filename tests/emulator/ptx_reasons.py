# SPDX-License-Identifier: Apache-2.0
"""Why mutations of PTX are harmless: what else orders the accesses that a changed line ordered.

A reason that names another line is proved by a run. Changed together, the two lines give findings
that the other line alone does not give.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a mutation is harmless, and the mutation (line, mistake) beside which it is not."""

    text: str
    beside: tuple[int, str] | None = None


NO_BARRIER, NO_WAIT = "no barrier", "no wait for a group"
ONE_MORE = "one more group may be pending"
AMPERE, PING_PONG = "sm_80 forward, rung 16", "sm_90 forward, rung 21"
SPLIT, BACKWARD = "sm_90 split keys, one launch", "sm_90 backward, dQ in order"

_Q_LATER = "Q is read behind the wait at line 417 and the barrier at line 420, which cover it."
_NO_STORES = (
    "No bulk store is in flight: this kernel stores O and its partial results by `st.global`."
)

REASONS: dict[tuple[str, int, str], Reason] = {
    (AMPERE, 410, NO_BARRIER): Reason(_Q_LATER, (420, NO_BARRIER)),
    (AMPERE, 407, NO_WAIT): Reason(_Q_LATER, (417, NO_WAIT)),
    (AMPERE, 407, ONE_MORE): Reason(_Q_LATER, (417, NO_WAIT)),
    (PING_PONG, 3368, ONE_MORE): Reason(
        "Each store is waited for at line 317 until it has read shared memory.", (317, NO_WAIT)
    ),
    (SPLIT, 898, NO_BARRIER): Reason(
        "It orders nothing: each of the four warps waits for K itself, at the mbarrier before it."
        " The barrier tells the compiler that the warps converge."
    ),
    (SPLIT, 4753, NO_WAIT): Reason(_NO_STORES),
    (SPLIT, 4753, ONE_MORE): Reason(_NO_STORES),
    (BACKWARD, 6646, "no fence of wgmma"): Reason(
        "A and B are in shared memory. Other instructions use the accumulator at lines 6814 to 7418"
        " alone, and several fences stand between these and the products; the last is line 5502."
    ),
}
