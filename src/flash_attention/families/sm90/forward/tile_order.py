# SPDX-License-Identifier: Apache-2.0
"""Which CTA computes which tile of the output."""

from __future__ import annotations

from enum import IntEnum


class TileOrder(IntEnum):
    """How the tiles of the output are handed to CTAs; ordered, so that configs are."""

    ONE_EACH = 0  # one CTA a tile
    PERSISTENT = 1  # resident CTAs stride over the tiles
    DYNAMIC = 2  # resident CTAs take the longest tile left, by an atomic counter
