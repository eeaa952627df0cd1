# SPDX-License-Identifier: Apache-2.0
"""TileOrder: which CTA computes which tile of the output."""

from __future__ import annotations

from enum import IntEnum


class TileOrder(IntEnum):
    """How the tiles of the output are assigned to CTAs.

    ONE_EACH launches one CTA per tile. PERSISTENT launches as many CTAs as are resident at a time,
    and each takes every n-th tile. DYNAMIC does so too, but a CTA takes the longest remaining tile
    from an atomic counter. The members are ordered, so that configs can be sorted.
    """

    ONE_EACH = 0
    PERSISTENT = 1
    DYNAMIC = 2
