# SPDX-License-Identifier: Apache-2.0
"""Why mutations of PTX are harmless: what else orders the accesses that a deleted line ordered.

A reason that names another line is proved by a run. Mutated together, the two give findings that
the other line alone does not give.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a mutation is harmless, and the mutation (line, mistake) beside which it is not."""

    text: str
    beside: tuple[int, str] | None = None


REASONS: dict[tuple[str, int, str], Reason] = {}
